"""An exported model loaded by `transformers`; runs where PyTorch is installed too (see `check_hf_export.py`)."""

import pytest

pytest.importorskip("torch", reason="PyTorch is of the extra `parity`")

from parity import check_hf_export


def test_exported_model_in_transformers(tmp_path):
    check_hf_export.write(tmp_path)
    check_hf_export.check(tmp_path)
