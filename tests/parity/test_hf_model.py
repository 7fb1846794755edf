"""Exported models loaded by `transformers`; runs where PyTorch is installed too (see `check_hf_*.py`)."""

import pytest

pytest.importorskip("torch", reason="PyTorch is of the extra `parity`")

from parity import check_hf_export, check_hf_voice


@pytest.mark.parametrize(
    ("model", "options"),
    [(check_hf_export, {"kind": kind}) for kind in check_hf_export.KINDS] + [(check_hf_voice, {})],
    ids=[*check_hf_export.KINDS, "voice"],
)
def test_exported_model_in_transformers(tmp_path, model, options):
    model.write(tmp_path, **options)
    model.check(tmp_path)
