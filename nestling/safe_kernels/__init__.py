r"""Replacements for PyTorch's convolutions and norms that write outside of their memory or give wrong results.

Three bugs of PyTorch's CPU kernels matter here, the first two of oneDNN. All are in PyTorch 2.13 and in every version
tested up to 2.15, and none raises an error.

**Strided 1×1 convolutions** (oneDNN issue 6035, ``jit_1x1`` backward of the weights) write past a workspace: the heap
is corrupted with one thread, gradients are wrong with several. All of these must hold: float32, one group, no padding,
channels-last strides of the input or the weight, fewer than 8 input channels (16 on AVX-512, and images as large as
56×56), more than one sample. Strides alone do not protect: those of a tensor with one channel are both channels last
and channels first. Transposed convolutions with few output channels have the same bug::

    LD_PRELOAD=libc_malloc_debug.so.0 GLIBC_TUNABLES=glibc.malloc.check=3 OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX2 \
    python -c "
    import torch
    for _ in range(200):
        x = torch.randn(20, 6, 8, 8).contiguous(memory_format=torch.channels_last)
        w = torch.randn(6, 6, 1, 1).contiguous(memory_format=torch.channels_last).requires_grad_()
        torch.nn.functional.conv2d(x, w, stride=2).sum().backward()"

Instead, the pixels that such a convolution reads are selected first, and convolved with stride 1: the same sums, in
double precision to the bit, in single precision if PyTorch chooses the same kernel for both. A transposed convolution
is computed with stride 1, and its pixels are then spread over zeros.

**Output columns that see no pixel** (oneDNN issue 5942, ``brg_conv_fwd``) crash the process, as a kernel is missing:
with a bias, channels-last strides, and padding that is wider than the kernel. It depends on the processor's caches::

    python -c "
    import torch
    x = torch.randn(2, 64, 1, 1).as_strided((2, 64, 1, 1), (64, 1, 64, 64))
    torch.nn.functional.conv2d(x, torch.randn(1, 64, 125, 1), torch.randn(1), stride=2, padding=63)"

Instead, the images are padded with zeros first, so that every column sees some pixel.

**Instance norms of one sample** give a wrong gradient if the incoming gradient is channels last, also in float64::

    python -c "
    import torch
    for form in (torch.contiguous_format, torch.channels_last):
        x, slope = torch.arange(96.).sin().view(1, 6, 4, 4).requires_grad_(), torch.arange(96.).cos().view(1, 6, 4, 4)
        torch.nn.functional.instance_norm(x).backward(slope.contiguous(memory_format=form))
        print(x.grad.abs().sum())"  # prints two numbers

Instead, incoming gradients of such norms are converted to channels first.

`guard` makes a model safe permanently; `SafeKernels` is a context in which everything is safe.
"""

from nestling.safe_kernels.functions import SafeKernels, convolve, convolve_transposed, instance_norm
from nestling.safe_kernels.hooks import guard, guarded, unguard

__all__ = ["SafeKernels", "convolve", "convolve_transposed", "guard", "guarded", "instance_norm", "unguard"]
