"""Where the time of one convolution goes under one way of drawing, beside the plain convolution.

python benchmarks/profile_layer.py 256 1024 1 8 --inputs 8 --draws 2 --way dense
"""

from __future__ import annotations

import argparse
import statistics

import torch
import torch.nn.functional as F
from common import clock
from torch.profiler import ProfilerActivity, profile
from ways import conv, forced, sampled

import bnn
from bnn.functional.cost import Way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("c_in", type=int)
    parser.add_argument("c_out", type=int)
    parser.add_argument("kernel", type=int)
    parser.add_argument("size", type=int, help="height and width of the input")
    parser.add_argument("--inputs", type=int, default=8)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--way", choices=[way.value for way in Way], default="dense")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    case = conv(args.c_in, args.c_out, args.kernel, args.size, args.inputs, args.draws)
    layer, x = sampled(case, torch.device("cpu"))
    bnn.set_sampling_(layer, "local")  # allows every way

    def ours() -> None:
        layer.output(x, forced(layer, Way(args.way), x))

    weight, parts = torch.randn(args.c_out, args.c_in, args.kernel, args.kernel), [part.contiguous() for part in x]

    def plain() -> None:
        for part in parts:
            F.conv2d(part, weight, padding=args.kernel // 2)

    with torch.no_grad():
        for name, run in (("plain", plain), (args.way, ours)):
            run()
            print(f"{name:28s} {1e3 * statistics.median(clock(run) for _ in range(15)):7.2f} ms")
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
            ours()
    events = sorted(recorded.key_averages(group_by_input_shape=True), key=lambda event: -event.self_cpu_time_total)
    for event in events[:8]:
        shapes = str(event.input_shapes)[:60]
        print(f"  {event.key:26s} {event.self_cpu_time_total / 1e3:7.2f} ms  x{event.count:<3d} {shapes}")


if __name__ == "__main__":
    main()
