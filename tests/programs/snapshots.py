"""Checks memory snapshots as PyTorch's viewer reads them (torch/utils/viz/MemoryViz.js): opcodes, and a replay from the end."""
import bisect
import pickle
import pickletools

# The pickle opcodes that PyTorch's viewer knows.
OPCODES = {"PROTO", "STOP", "MARK", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE",
           "EMPTY_LIST", "APPENDS", "EMPTY_DICT", "SETITEMS", "TUPLE2", "BINGET", "BINPUT"}


def backwards(entries, segments):
    """Replays a device's trace from its end, as the viewer does. Returns the error as text, or None."""
    extents = {s["address"]: s["total_size"] for s in segments}
    blocks = {}
    for s in segments:
        at = s["address"]
        for b in s["blocks"]:
            if b["address"] != at:
                return "a gap before block %x" % b["address"]
            at += b["size"]
            if b["state"] == "active_allocated":
                blocks[b["address"]] = b["size"]
        if at != s["address"] + s["total_size"]:
            return "segment %x is not filled" % s["address"]

    pages = {}  # begin: end of each live block
    starts = sorted(extents)
    merged = {}
    for start in starts:
        merged[start] = start + extents[start]

    def inside(address, size):
        keys = sorted(merged) if len(merged) < 64 else inside.keys
        i = bisect.bisect_right(keys, address) - 1
        return i >= 0 and address + size <= merged[keys[i]]

    inside.keys = sorted(merged)
    for entry in reversed(entries):
        action, address, size = entry["action"], entry.get("addr"), entry["size"]
        if action == "alloc":
            if blocks.pop(address, None) is None:
                return "alloc of %x, which is not there later" % address
        elif action == "free_completed":
            if address in blocks:
                return "free of %x, which is there afterwards" % address
            blocks[address] = size
            if not inside(address, size):
                return "block %x lies in no segment" % address
        elif action == "free_requested":
            if address not in blocks:
                return "a free of %x was asked for that is never completed" % address
        elif action in ("segment_alloc", "segment_map"):
            holder = next((a for a in merged if a <= address and address + size <= merged[a]), None)
            if holder is None:
                return "segment %x is not there later" % address
            end = merged.pop(holder)
            if holder < address:
                merged[holder] = address
            if address + size < end:
                merged[address + size] = end
            inside.keys = sorted(merged)
        elif action in ("segment_free", "segment_unmap"):
            if any(a < address + size and address < merged[a] for a in merged):
                return "segment %x is there after its end" % address
            merged[address] = address + size
            if action == "segment_unmap":
                for other in [a for a in merged if merged[a] == address]:
                    merged[other] = merged.pop(address)
                    address = other
                if merged[address] in merged:
                    merged[address] = merged.pop(merged[address])
            inside.keys = sorted(merged)
        elif action == "oom":
            if "device_free" not in entry:
                return "an oom without device_free"
    return None


def check(tally, what, data, report=None, whole=False):
    """Checks the pickle of a snapshot, and its sums against a report. With `whole`, the trace has all events. Returns it."""
    opcodes = {op.name for op, _, _ in pickletools.genops(data)}
    tally.check(opcodes <= OPCODES, "%s: opcodes of the pickle" % what, opcodes - OPCODES)
    snapshot = pickle.loads(data)
    traces = snapshot["device_traces"]
    options = snapshot["allocator_settings"]["options"]
    tally.check("GPUCACHE_REUSE=barrier" in options and not any("\n" in option for option in options),
                "%s: options one by one" % what, options)
    batches = sum(op.name == "APPENDS" for op, _, _ in pickletools.genops(data))
    tally.check(batches >= sum((len(entries) + 999) // 1000 for entries in traces), "%s: short batches" % what, batches)
    for device, entries in enumerate(traces):
        segments = [s for s in snapshot["segments"] if s["device"] == device]
        for s in segments:
            live = [b for b in s["blocks"] if b["state"] == "active_allocated"]
            tally.check(sum(b["size"] for b in s["blocks"]) == s["total_size"] and
                        sum(b["size"] for b in live) == s["allocated_size"] == s["active_size"] and
                        sum(b["requested_size"] for b in live) == s["requested_size"] and
                        all(b["requested_size"] <= b["size"] for b in live), "%s: sizes of a segment" % what, s)
        wrong = backwards(entries, segments)
        tally.check(wrong is None, "%s: replayed backwards" % what, wrong)
        times = [entry["time_us"] for entry in entries]
        tally.check(times == sorted(times), "%s: entries in the order of time" % what)
        if report and device < len(report["devices"]):
            said = report["devices"][device]
            for name in ("requested", "allocated"):
                ours = sum(s[name + "_size"] for s in segments)
                tally.check(ours == said[name + "_bytes"]["current"], "%s: %s" % (what, name),
                            "%d, report %s" % (ours, said[name + "_bytes"]))
            reserved = sum(s["total_size"] for s in segments)
            tally.check(reserved == said["reserved_bytes"]["current"], "%s: reserved" % what,
                        "%d, report %s" % (reserved, said["reserved_bytes"]))
            live = sum(b["state"] == "active_allocated" for s in segments for b in s["blocks"])
            tally.check(live == said["allocations"]["current"], "%s: blocks" % what, live)
            if whole:
                for action, count in (("alloc", "total"), ("free_completed", "freed")):
                    tally.check(sum(e["action"] == action for e in entries) == said["allocations"][count],
                                "%s: as many as there were: %s" % (what, action))
    return snapshot
