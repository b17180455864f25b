"""What is recorded of a machine: names that tell processors and versions apart."""

import platform

import torch

from nestling.machine import cpu_name, processor


def test_a_cap_of_the_instruction_set_and_the_version_are_named(monkeypatch):
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(name, raising=False)
    usual = processor()
    assert usual["isa_cap"] == ""
    assert usual["torch"] == torch.__version__
    assert usual["capability"] == torch.backends.cpu.get_cpu_capability()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    capped = processor()
    assert capped["isa_cap"] == "ONEDNN_MAX_CPU_ISA=AVX2"
    assert {name for name in usual if usual[name] != capped[name]} == {"isa_cap"}


def test_the_name_is_read_from_linux_or_else_told_by_the_platform(tmp_path):
    listed = tmp_path / "cpuinfo"
    listed.write_text("processor\t: 0\nmodel name\t: Fast One 9000\nprocessor\t: 1\nmodel name\t: Other\n")
    assert cpu_name(listed) == "Fast One 9000"
    listed.write_text("processor\t: 0\n")
    assert cpu_name(listed) == (platform.processor() or platform.machine())
    assert cpu_name(tmp_path / "missing")
