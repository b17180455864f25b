"""A child of the guard: small convolutions of every shape, through `nestling.safe_kernels`, against double precision.

Run with malloc checking, which ends the process where a kernel wrote outside of its memory.
"""

import itertools
import sys
import time

import torch
import torch.nn.functional as F

from nestling.safe_kernels import SafeKernels

COUNTS = (20, 2)  # samples; kernels differ with them
INPUTS = range(1, 18)
OUTPUTS = (1, 3, 7, 8, 17)
KERNELS, STRIDES = (1, 3, 5), (1, 2)
FUNCTIONS = {
    "conv2d": (F.conv2d, 2, False),
    "conv1d": (F.conv1d, 1, False),
    "conv_transpose2d": (F.conv_transpose2d, 2, True),
    "conv_transpose1d": (F.conv_transpose1d, 1, True),
}
# Some output columns see no pixel: such convolutions end the process on some processors.
BLIND = [
    ((2, 64, 1, 1), (1, 64, 125, 1), {"stride": 2, "padding": 63}),
    ((20, 6, 8, 1), (6, 6, 3, 1), {"stride": 2, "padding": 1}),
    ((20, 6, 8, 1), (6, 6, 1, 1), {"stride": 2, "padding": 1}),
    ((2, 16, 4, 2), (16, 16, 3, 3), {"stride": 1, "padding": 20}),
    ((2, 3, 8, 3), (8, 3, 1, 1), {"stride": 1, "padding": 30}),
]
# On AVX-512 strided points are at fault where the output is large.
LARGE = [
    ((count, channels, 56, 56), (channels, channels // groups, 1, 1), {"stride": 2, "groups": groups})
    for count in COUNTS
    for channels in (1, 6, 15)
    for groups in (1, channels)
]


def laid(tensor, last):
    """Channels last in memory, whether that can be seen in the strides or not, or channels first."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if last else tensor.contiguous()


def slopes(function, images, weight, bias, given, double):
    tensors = [one.double() if double else one for one in (images, weight, bias)]
    tensors = [one.detach().requires_grad_() for one in tensors]
    result = function(*tensors, **given)
    result.backward(torch.arange(result.numel(), dtype=result.dtype).sin().view(result.shape))
    return result.detach(), *(one.grad for one in tensors)


def check(name, count, inputs, outputs, kernel, stride, last, padding):
    function, places, transposed = FUNCTIONS[name]
    size = 8 if not transposed else 4
    images = laid(torch.randn(count, inputs, *[size] * places), last)
    weight = laid(torch.randn(*((inputs, outputs) if transposed else (outputs, inputs)), *[kernel] * places), last)
    bias = torch.randn(outputs)
    given = {"stride": stride, "padding": padding}
    if transposed:
        given["output_padding"] = stride - 1
    with SafeKernels():
        actual = slopes(function, images, weight, bias, given, double=False)
    wanted = slopes(function, images.contiguous(), weight.contiguous(), bias, given, double=True)
    for what, one, other in zip(("output", "images", "weight", "bias"), actual, wanted, strict=True):
        if not torch.allclose(one.double(), other, rtol=1e-3, atol=1e-3 * other.abs().max().item()):
            shape = f"{count} samples, {inputs} to {outputs} channels, kernel {kernel}, {given}, last {last}"
            raise SystemExit(f"{name} of {shape}: the gradient of its {what} is wrong")


def check_cases(what, cases):
    """Compare convolutions of channels-last tensors with double precision; a case is two shapes and arguments."""
    for size, kernel, given in cases:
        images, weight, bias = (
            laid(torch.randn(size), last=True),
            laid(torch.randn(kernel), last=True),
            torch.ones(kernel[0]),
        )
        with SafeKernels():
            actual = slopes(F.conv2d, images, weight, bias, given, double=False)
        wanted = slopes(F.conv2d, images.contiguous(), weight.contiguous(), bias, given, double=True)
        for one, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3 * other.abs().max().item())
    print(f"{what}: {len(cases)} shapes clean", flush=True)


def main(names):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    check_cases("columns without pixels", BLIND)
    check_cases("strided points of large images", LARGE)
    for name in names or FUNCTIONS:
        began, done = time.process_time(), 0
        shapes = itertools.product(INPUTS, OUTPUTS, KERNELS, STRIDES, (True, False))
        for inputs, outputs, kernel, stride, last in shapes:
            counts = COUNTS if kernel == 1 else COUNTS[done % 2 :][:1]
            for count in counts:
                check(name, count, inputs, outputs, kernel, stride, last, kernel // 2)
                done += 1
        print(f"{name}: {done} shapes clean, {time.process_time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
