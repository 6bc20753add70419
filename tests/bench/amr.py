"""A program of workloads.py: a gas after a blast, in a grid that is refined where the wave runs. Patches come and go.

Real in what it allocates and computes; where it is refined is drawn at random, not found.
"""

from random import Random

import torch
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

GHOSTS = 4  # cells around a patch that others own
GAMMA = 1.4


def box(start, sides):
    return (slice(None), *(slice(GHOSTS + a, GHOSTS + a + n) for a, n in zip(start, sides)))


class Patch:
    """Holds density, momentum and energy of a box of cells, before and after a time step."""

    def __init__(self, sides, place):
        self.sides, self.place = sides, place
        self.state, self.other = (
            torch.empty(5, *(n + 2 * GHOSTS for n in sides), dtype=torch.float64, device=device) for _ in range(2)
        )

    def inside(self):
        return self.state[box((0, 0, 0), self.sides)]

    def attach(self, parents):
        """Sets the part of a coarser patch that this patch covers."""
        self.parent = parents[self.place % len(parents)]
        self.covers = tuple(min(n // 2, m) for n, m in zip(self.sides, self.parent.sides))
        self.start = tuple(7 * self.place % (m - n + 1) for n, m in zip(self.covers, self.parent.sides))

    def fill(self):
        """Fills the patch by interpolating its coarser patch."""
        coarse = self.parent.state[box((a - 2 for a in self.start), (n + 4 for n in self.covers))]
        self.state.copy_(F.interpolate(coarse[None], self.state.shape[1:], mode="trilinear")[0])

    def faces(self):
        """Yields (box of the ghosts, its sides, axis, whether at the upper end) of each face."""
        for axis in range(3):
            for upper in (False, True):
                start, sides = [0, 0, 0], list(self.sides)
                start[axis], sides[axis] = (self.sides[axis] if upper else -GHOSTS), GHOSTS
                yield box(start, sides), sides, axis, upper

    def ghosts_from_parent(self):
        for ghosts, sides, axis, upper in self.faces():
            start, covers = list(self.start), list(self.covers)
            start[axis], covers[axis] = start[axis] + (covers[axis] if upper else -2), 2
            coarse = self.parent.state[box(start, covers)]
            self.state[ghosts] = F.interpolate(coarse[None], sides)[0]

    def ghosts_from_neighbours(self, patches):
        """Patches of the coarsest level lie three by three by three, and it goes on at the other side."""
        for ghosts, sides, axis, upper in self.faces():
            place = [self.place // 9, self.place // 3 % 3, self.place % 3]
            place[axis] = (place[axis] + (1 if upper else -1)) % 3
            neighbour = patches[9 * place[0] + 3 * place[1] + place[2]]
            start = [0, 0, 0]
            start[axis] = 0 if upper else neighbour.sides[axis] - GHOSTS
            self.state[ghosts] = neighbour.state[box(start, sides)]

    def advance(self, ratio=0.03):
        """Advances by `ratio` times a cell's width, with Rusanov's fluxes through all faces."""
        u, new = self.state, self.other.copy_(self.state)
        density = u[0].clamp_min(1e-3)
        velocity = u[1:4] / density
        pressure = ((GAMMA - 1) * (u[4] - 0.5 * (u[1:4] * velocity).sum(0))).clamp_min(1e-3)
        sound = (GAMMA * pressure / density).sqrt()
        for axis in range(3):
            flux = u * velocity[axis]
            flux[1 + axis] += pressure
            flux[4] += pressure * velocity[axis]
            speed, n = velocity[axis].abs() + sound, self.sides[axis] + 2 * GHOSTS - 1
            fastest = torch.maximum(speed.narrow(axis, 0, n), speed.narrow(axis, 1, n))
            through = flux.narrow(1 + axis, 0, n) + flux.narrow(1 + axis, 1, n) - fastest * u.diff(dim=1 + axis)
            new.narrow(1 + axis, 1, n - 1).sub_(through.diff(dim=1 + axis), alpha=ratio / 2)
        self.state, self.other = new, u

    def give_parent(self):
        self.parent.state[box(self.start, self.covers)] = F.adaptive_avg_pool3d(self.inside()[None], self.covers)[0]


def amr(unit=8):
    """A step is one step of the coarsest level, with two and four of the finer levels. A period has twelve steps: one blast."""
    coarsest = [Patch((8 * unit,) * 3, place) for place in range(27)]
    levels, dice = [coarsest, [], []], Random(7)

    def blast():
        for patch in coarsest:
            patch.state.zero_()
            patch.state[0] = 1
            patch.state[4] = 1 / (GAMMA - 1)
        coarsest[13].state[4, 3 * unit : 5 * unit, 3 * unit : 5 * unit, 3 * unit : 5 * unit] *= 10

    def wanted(level, time):
        """Returns boxes along the front. Their number grows with its distance."""
        steep = [(patch.state[4].diff(dim=0).abs() > 1e-4).flatten() for patch in levels[level - 1]]
        if not steep or not torch.cat(steep).any():
            return []
        radius = 1 - abs(2 * time - 1)
        places = [p for p in range(int((6 << 2 * level) * radius * radius) + 2) if dice.random() < 0.8]
        return [(p, tuple(unit * dice.randint(5 - level, 11 - level) for _ in range(3))) for p in places]

    def regrid(level, boxes):
        """Replaces the patches of `level`. Unchanged patches stay; old ones live until the new ones are filled."""
        stays, new = {(patch.place, patch.sides): patch for patch in levels[level]}, []
        for place, sides in boxes:
            patch = stays.get((place, sides)) or Patch(sides, place)
            patch.attach(levels[level - 1] or coarsest)
            if (place, sides) not in stays:
                patch.fill()
            new.append(patch)
        levels[level] = new

    def step(i):
        if i % 12 == 0:
            blast()
        if i % 2 == 0:
            for level in (1, 2):
                regrid(level, wanted(level, i % 12 / 12))
        for level, patches in enumerate(levels):
            for _ in range(1 << level):
                for patch in patches:
                    patch.ghosts_from_parent() if level else patch.ghosts_from_neighbours(patches)
                for patch in patches:
                    patch.advance()
        for patch in levels[2] + levels[1]:
            patch.give_parent()
        return torch.stack([patch.inside()[4].square().mean() for patch in coarsest]).mean()

    return step, 12
