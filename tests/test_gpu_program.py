"""What programs for a GPU consist of: the count, and mFormerV1-tiny compiled for an H100."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_program, gpu_worker
from benchmarks.gpu_kernels import Kernel, figures, listing
from benchmarks.gpu_program import Options

#: share of the state that an update copies
MOST_COPIED = 0.02
PEAKS = {"bf16": 1e12, "f32": 5e11}
STORED = Path(__file__).parent / "golden" / "gpu_program.json"
#: what is compared with stored figures
FIGURES = ("kernels", "mb_per_picture", "gflop_per_picture", "roof_ms", "temporary_mb", "arguments_mb")
#: of a matrix product in float32, which a GPU computes at half the speed or less: those of metadata and heads alone
MOST_FLOAT32_MFLOP = 0.5  # of one picture

TEXT = """HloModule jit_f, is_scheduled=true

%fused (p.0: f32[1000,64], p.1: s32[]) -> f32[8,64] {
  %p.0 = f32[1000,64]{1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %part = f32[8,64]{1,0} dynamic-slice(%p.0, %p.1, %zero), dynamic_slice_sizes={8,64}
  ROOT %twice = f32[8,64]{1,0} add(%part, %part)
}

%inner (a: bf16[8,64], b: bf16[64,32]) -> bf16[8,32] {
  %a = bf16[8,64]{1,0} parameter(0)
  %b = bf16[64,32]{1,0} parameter(1)
  ROOT %dot = bf16[8,32]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (t: (s32[], f32[8,64])) -> (s32[], f32[8,64]) {
  %t = (s32[], f32[8,64]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %x = f32[8,64]{1,0} get-tuple-element(%t), index=1
  %again = f32[8,64]{1,0} copy(%x)
  ROOT %r = (s32[], f32[8,64]{1,0}) tuple(%n, %again)
}

%dear (x.1: f32[8,64]) -> f32[8,64] {
  %x.1 = f32[8,64]{1,0} parameter(0)
  ROOT %c.1 = f32[8,64]{1,0} copy(%x.1)
}

%free (x.2: f32[8,64]) -> f32[8,64] {
  ROOT %x.2 = f32[8,64]{1,0} parameter(0)
}

ENTRY %main (q: f32[1000,64], i: s32[], w: bf16[64,32], image: bf16[2,8,8,4], k: bf16[6,3,3,4]) -> f32[8,64] {
  %q = f32[1000,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %w = bf16[64,32]{1,0} parameter(2)
  %image = bf16[2,8,8,4]{3,2,1,0} parameter(3)
  %k = bf16[6,3,3,4]{3,2,1,0} parameter(4)
  %rows = f32[8,64]{1,0} fusion(%q, /*index=1*/%i), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/rows"}
  %send = f32[8,64]{1,0} all-reduce-start(%rows), replica_groups={}
  %narrow = bf16[8,64]{1,0} convert(%rows)
  %product = bf16[8,32]{1,0} fusion(%narrow, %w), kind=kCustom, calls=%inner
  %conv = (bf16[2,8,8,6]{3,2,1,0}, u8[4096]{0}) custom-call(%image, %k), dim_labels=b01f_o01i->b01f, FORWARD
  %sum = f32[8,64]{1,0} all-reduce-done(%send)
  %start = (s32[], f32[8,64]{1,0}) tuple(%i, %sum)
  %loop = (s32[], f32[8,64]{1,0}) while(%start), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %other = (s32[], f32[8,64]{1,0}) while(%loop), condition=%c, body=%body, metadata={op_name="jit(f)/until"}
  %y = f32[8,64]{1,0} get-tuple-element(%other), index=1
  ROOT %z = f32[8,64]{1,0} conditional(%i, %y, %y), branch_computations={%free, %dear}, metadata={op_name="jit(f)/if"}
}
""".replace("FORWARD", 'custom_call_target="__cudnn$convForward"')


def of(kernels: list[Kernel], kind: str) -> list[Kernel]:
    return [kernel for kernel in kernels if kernel.kind == kind]


def test_kernels_of_a_program() -> None:
    found = listing(TEXT)
    rows, narrow = of(found.kernels, "element-wise")
    assert (rows.bytes, rows.scope) == (2048 + 4 + 2048, "jit(f)/rows")  # of the large array the slice alone
    assert narrow.bytes == 2048 + 1024
    (product,) = of(found.kernels, "product")
    assert (product.flops, product.bytes) == (2 * 8 * 64 * 32, 1024 + 4096 + 512)
    assert product.dtypes == ("bf16", "bf16", "bf16")
    (convolution,) = of(found.kernels, "convolution")
    assert convolution.flops == 2 * (2 * 8 * 8 * 6) * (3 * 3 * 4)
    assert convolution.bytes == 2 * (512 + 216 + 768)  # without scratch memory
    assert [kernel.rounds for kernel in of(found.kernels, "copy")] == [3, 1, 1]
    (sent,) = of(found.kernels, "all-reduce")
    assert (sent.bytes, sent.beside) == (2 * 2048, 3)  # the product, the convolution, and what makes an operand narrow
    assert found.loops == [("", 3), ("jit(f)/until", None)]
    assert found.conditionals == ["jit(f)/if"]


def test_figures_of_a_program() -> None:
    found = figures(listing(TEXT), 2, 1e9, PEAKS)
    assert found["kernels"] == 10
    assert found["small_kernels"] == 10
    assert found["convolutions"] == {"bf16 x bf16": 1}
    assert found["float32_convolutions"] == found["float32_products"] == 0
    assert (found["copies"], found["copied_mb"]) == (5, 0.01)
    assert found["unknown_loops"] == ["jit(f)/until"]
    collectives = found["collectives"]["all-reduce"]
    assert (collectives["kernels"], collectives["beside_ms"]) == (1, 0.0)  # too small to matter
    many = listing(TEXT.replace("f32[8,64]{1,0} all-reduce-start", "f32[800,640]{1,0} all-reduce-start"))
    beside = figures(many, 2, 1e9, PEAKS)["collectives"]["all-reduce"]["beside_ms"]
    assert beside == pytest.approx(0.013, abs=0.001)  # what is made narrow, the product, the convolution
    assert found["mb_per_picture"] == round(sum(sums["mb_per_picture"] for sums in found["kinds"].values()), 3)
    lines = {line["figure"]: line["one"] for line in gpu_program.table({"one": found})}
    assert (lines["kernels"], lines["unknown_loops"], lines["convolutions"]) == (10, 1, "1 bf16 x bf16")
    assert found["roof_ms"] == pytest.approx(2 * found["mb_per_picture"], abs=0.002)  # bytes alone count at 1 GB/s


def test_two_results_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, copies in (("old", 4), ("new", 2)):
        found = figures(listing(TEXT), 2, 1e9, PEAKS) | {"copies": copies}
        (tmp_path / f"{name}.json").write_text(json.dumps({"programs": {"update": found}}))
    gpu_program.main(["--compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")])
    assert capsys.readouterr().out == "update: copies 4 -> 2  x 0.5\n"


def test_without_the_compiler_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_program, "COMPILER", "jax-cuda-of-nobody")
    with pytest.raises(SystemExit) as stopped:
        gpu_program.main(["update"])
    assert re.fullmatch(r".*jax-cuda-of-nobody.*not installed.*pip install .*gpu-program.*", str(stopped.value))


def test_an_unknown_program_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_program.main(["updaet"])
    assert "updaet: there are update, gradnorm, evaluation, predict" in capsys.readouterr().err


def test_every_target_is_described() -> None:
    for target in gpu_program.TARGETS.values():
        assert 1e11 < target.bandwidth < 1e13
        assert target.bfloat16 > target.tensorfloat32 > 0
    assert gpu_program.PROGRAMS == gpu_worker.PROGRAMS
    assert set(gpu_program.CONFIGS) == set(gpu_worker.CONFIGS)
    given = json.loads(Options(changes=(("a.b", 1),)).settings("update"))
    assert {field.name for field in fields(Options)} <= set(given)
    assert Path(given["target_file"]).is_file()


#: the fused kernel of mFormerV0
FUSED = (("model.attn_impl", "cudnn"), ("model.attn_drop_kind", "keys"))
#: what is compiled, and the blocks with attention that it has
TINY = {
    "mFormerV1": (Options("mFormerV1-tiny", img_size=224, rows=32), 3),
    "mFormerV0": (Options("mFormerV0-tiny", img_size=224, rows=32, changes=FUSED), 3),
    "ViT": (Options("ViT-tiny", img_size=224, rows=32), 2),
}


@pytest.mark.slow
@pytest.mark.needs("gpu-compiler")
@pytest.mark.parametrize("family", TINY)
def test_an_update_for_an_h100(family: str) -> None:
    """UPDATE_GOLDEN=1 writes the stored figures anew."""
    options, blocks = TINY[family]
    found = gpu_program.compiled("update", options)
    assert found["attention_forward"] == found["attention_backward"] == blocks
    assert found["float32_convolutions"] == 0
    assert found["largest_float32_product_mflop"] < MOST_FLOAT32_MFLOP
    assert found["unknown_loops"] == found["conditionals"] == []  # the host would wait for each
    assert found["aliased_mb"] == found["donated_mb"]  # every byte of the state is written over
    assert found["copied_mb"] < MOST_COPIED * found["donated_mb"]
    version = metadata.version("jaxlib")
    stored: dict[str, Any] = json.loads(STORED.read_text())
    if os.environ.get("UPDATE_GOLDEN"):
        stored.setdefault(version, {})[family] = {name: found[name] for name in FIGURES}
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    assert version in stored, f"no figures of jaxlib {version} are stored: UPDATE_GOLDEN=1 writes them"
    assert {name: found[name] for name in FIGURES} == pytest.approx(stored[version][family], rel=0.03)
