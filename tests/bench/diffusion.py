"""A program of workloads.py: a diffusion model trains on pictures, all of it random, and now and then makes some."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Residual(nn.Module):
    def __init__(self, into, out, moment=0):
        super().__init__()
        self.first, self.second = (
            nn.Sequential(nn.GroupNorm(32, n), nn.SiLU(), nn.Conv2d(n, out, 3, padding=1)) for n in (into, out)
        )
        self.moment = nn.Linear(moment, out) if moment else None
        self.past = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x, moment=None, text=None):
        y = self.first(x)
        if self.moment:
            y = y + self.moment(F.silu(moment))[:, :, None, None]
        return self.past(x) + self.second(y)


class Looks(nn.Module):
    """A block with attention to the picture and to the text, and a gated layer."""

    def __init__(self, channels, seen, heads=8):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, channels)
        self.into, self.out = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.attentions = nn.ModuleList(
            nn.ModuleList(nn.Linear(n, channels, bias=i == 3) for i, n in enumerate((channels, other, other, channels)))
            for other in (channels, seen)
        )
        self.gated, self.last = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x, moment, text):
        y = self.into(self.norm(x)).flatten(2).transpose(1, 2)
        for norm, (q, k, v, out), other in zip(self.norms, self.attentions, (None, text)):
            looking = norm(y)
            other = looking if other is None else other
            q, k, v = (
                f(z).unflatten(2, (self.heads, -1)).transpose(1, 2) for f, z in ((q, looking), (k, other), (v, other))
            )
            y = y + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        value, gate = self.gated(self.norms[2](y)).chunk(2, -1)
        y = y + self.last(value * F.gelu(gate))
        return x + self.out(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class Stage(nn.Module):
    def __init__(self, into, out, moment, seen, looks):
        super().__init__()
        self.residual, self.looks = Residual(into, out, moment), Looks(out, seen) if looks else None

    def forward(self, x, moment, text):
        x = self.residual(x, moment)
        return self.looks(x, moment, text) if self.looks else x


class Resized(nn.Module):
    def __init__(self, channels, up):
        super().__init__()
        self.up, self.conv = up, nn.Conv2d(channels, channels, 3, stride=1 if up else 2, padding=1)

    def forward(self, x, moment=None, text=None):
        return self.conv(F.interpolate(x, scale_factor=2.0) if self.up else x)


class UNet(nn.Module):
    def __init__(self, channels, seen):
        super().__init__()
        base, moment, into, skips = channels[0], 4 * channels[0], channels[0], [channels[0]]
        self.moments = nn.Sequential(nn.Linear(base, moment), nn.SiLU(), nn.Linear(moment, moment))
        self.first, self.down, self.up = nn.Conv2d(4, base, 3, padding=1), nn.ModuleList(), nn.ModuleList()
        for level, out in enumerate(channels):
            for _ in range(2):
                self.down.append(Stage(into, out, moment, seen, level < 3))
                skips.append(out)
                into = out
            if level < 3:
                self.down.append(Resized(out, False))
                skips.append(out)
        self.middle = nn.ModuleList((Stage(into, into, moment, seen, True), Residual(into, into, moment)))
        for level in (3, 2, 1, 0):
            out, stages = channels[level], nn.ModuleList()
            for _ in range(3):
                stages.append(Stage(into + skips.pop(), out, moment, seen, level < 3))
                into = out
            self.up.append(nn.ModuleList((stages, Resized(out, True) if level else nn.Identity())))
        self.last = nn.Sequential(nn.GroupNorm(32, base), nn.SiLU(), nn.Conv2d(base, 4, 3, padding=1))

    def forward(self, x, times, text):
        rates = 1e4 ** (-torch.arange(self.first.out_channels // 2, device=device) / (self.first.out_channels // 2))
        turns = times[:, None] * rates
        moment = self.moments(torch.cat((turns.cos(), turns.sin()), -1))
        x = self.first(x)
        skips = [x]
        for stage in self.down:
            x = stage(x, moment, text)
            skips.append(x)
        for stage in self.middle:
            x = stage(x, moment, text)
        for stages, resized in self.up:
            for stage in stages:
                x = stage(torch.cat((x, skips.pop()), 1), moment, text)
            x = resized(x)
        return self.last(x)


def picture_decoder(finest):
    """Makes the layers from the model's pixels to the picture's, eight times as many in each direction."""
    stages, into = [nn.Conv2d(4, 4 * finest, 3, padding=1)], 4 * finest
    for level, out in enumerate((4 * finest, 4 * finest, 2 * finest, finest)):
        stages += [Resized(into, True)] if level else []
        stages += [Residual(into, out), Residual(out, out), Residual(out, out)]
        into = out
    stages += [nn.GroupNorm(32, into), nn.SiLU(), nn.Conv2d(into, 3, 3, padding=1)]
    return nn.Sequential(*stages).to(device, torch.bfloat16).requires_grad_(False)


def diffusion(channels=(320, 640, 1280, 1280), seen=768, finest=128, shrunk=1):
    """A step trains on a batch of 6 pictures in one of eight formats. After the eighth, it makes pictures in the first two."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    model, painter = UNet(channels, seen).to(device), picture_decoder(finest)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    formats = ((64, 64), (72, 56), (56, 72), (80, 48), (48, 80), (96, 40), (64, 48), (88, 48))
    formats = [(8 * (h // 8 // shrunk), 8 * (w // 8 // shrunk)) for h, w in formats]
    dice = torch.Generator(device).manual_seed(3)

    def drawn(*shape):
        return torch.randn(*shape, device=device, generator=dice)

    def make(height, width):
        """Makes a picture; one batch has a row with the text and one without."""
        x, text = drawn(1, 4, height, width), drawn(2, 77, seen)
        with torch.no_grad():
            for time in (999, 749, 499, 249):
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    noise = model(torch.cat((x, x)), torch.full((2,), time, device=device), text)
                without, with_text = noise.float().chunk(2)
                x = x - 0.25 * (without + 7.5 * (with_text - without))
            return painter(x.bfloat16())

    def step(i):
        x, noise, text = drawn(6, 4, *formats[i % 8]), drawn(6, 4, *formats[i % 8]), drawn(6, 77, seen)
        times = torch.randint(0, 1000, (6,), device=device, generator=dice)
        kept = (1 - times / 1000)[:, None, None, None]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, times, text).float(), noise)
        loss.backward()
        optimizer.step()
        if i % 8 == 7:
            for shape in formats[:2]:
                make(*shape)
        return loss

    return step, 8
