"""verbatim.Trainer: the losses and weights of `verbatim train`, and the gradients of `verbatim dump --gradients`, bit by bit."""

import gc
import json
import subprocess
import weakref

import numpy as np
import pytest
import verbatim
from conftest import BUILD, assert_same_bits, joined, path, run

TEXT = [(7 * i + 3) % 120 for i in range(40)]


def test_steps_have_the_bits_of_the_command(tmp_path, models):
    (tmp_path / "text.jsonl").write_text(json.dumps({"tokens": TEXT}) + "\n")
    subprocess.run([BUILD / "verbatim", "train", path("tiny/v3-mtp3"), "--data", tmp_path / "text.jsonl", "--eval-share", "0", "--eval-prompts", "0", "--threads", "1",
                    "--train-iters", "2", "--lr", "0.01", "--lr-decay-style", "constant", "--type", "f32", "-o", tmp_path / "run"], check=True, stdout=subprocess.DEVNULL)
    with verbatim.Trainer(models("tiny/v3-mtp3"), threads=1) as trainer:
        first = {name: x.w.copy() for name, x in trainer.tensors.items()}
        for step in (1, 2):
            losses = trainer.gradients([TEXT])
            assert trainer.update(step, 0.01) > 0
        assert losses.main == 0 and losses.rows == 0 and len(losses.by_depth) == 3 and losses.depth_rows == [38, 37, 36]
        assert losses.total == pytest.approx(0.1 * np.mean(losses.by_depth), rel=1e-12)
        assert trainer.losses([TEXT]).total < losses.total
        written = verbatim.Tensors(tmp_path / "run/model")
        for name, x in trainer.tensors.items():
            assert_same_bits(x.w, written[name], name)
            assert (x.w != first[name]).any() == (x.g is not None) and x.decays == (x.w.ndim == 2) and not x.is_new
    with pytest.raises(ValueError, match="closed"):
        trainer.losses([TEXT])


def test_gradients_are_those_of_dump_and_tensors_can_be_written(tmp_path, models):
    run("dump", path("tiny/v3"), "--tokens", joined(TEXT), "--gradients", "-o", tmp_path / "gradients.safetensors")
    with verbatim.Tensors(tmp_path / "gradients.safetensors") as theirs, verbatim.Trainer(models("tiny/v3"), part="model", threads=2) as trainer:
        trainer.gradients([TEXT])
        ours = {name: x.g for name, x in trainer.tensors.items() if x.g is not None}
        assert set(theirs) == set(ours)
        for name in theirs:
            assert_same_bits(ours[name], theirs[name], name)
        before = trainer.losses([TEXT]).total
        trainer.tensors["lm_head.weight"].w[:] = 0
        assert trainer.losses([TEXT]).main == pytest.approx(np.log(models("tiny/v3").vocab_size), rel=1e-6) != before


def test_a_mask_leaves_rows_out_and_mistakes_are_errors(models):
    with verbatim.Trainer(models("tiny/v3"), depths=1, threads=1) as trainer:
        mask = [i % 2 for i in range(40)]
        assert trainer.losses([TEXT], [mask]).depth_rows == [sum(mask[2:])]
        with pytest.raises(ValueError, match="loss_masks"):
            trainer.losses([TEXT], [mask[1:]])
        with pytest.raises(verbatim.VerbatimError, match="there are no gradients yet"):
            trainer.update(1, 0.1)
        with pytest.raises(verbatim.VerbatimError, match="token 1 of sequence 0 is 160"):
            trainer.gradients([[1, 160]])
    with pytest.raises(TypeError, match="no option learning_rate"):
        verbatim.Trainer(models("tiny/v3"), learning_rate=1)
    with pytest.raises(verbatim.VerbatimError, match="part is half, wanted modules, model, eagle"):
        verbatim.Trainer(models("tiny/v3"), part="half")


def test_an_array_keeps_its_trainer_open(models):
    trainer = verbatim.Trainer(models("tiny/v3"), depths=1, threads=1)
    there, array = weakref.ref(trainer), trainer.tensors["model.layers.3.eh_proj.weight"].w
    half = array[:5]
    del trainer, array
    gc.collect()
    assert there() is not None
    del half
    gc.collect()
    assert there() is None


def test_draft_heads_are_trained(models):
    draft = [1, 5, 6, 30, 31, 66]
    with verbatim.Trainer(models("tiny/v3"), part="eagle3", draft_tokens=draft, threads=1) as trainer:
        first = trainer.gradients([TEXT])
        assert first.main == 0 and len(first.by_depth) == 3
        trainer.update(1, 0.01)
        assert trainer.losses([TEXT]).total < first.total
        assert trainer.tensors["lm_head.weight"].w.shape == (len(draft), models("tiny/v3").hidden_size)
    with verbatim.Trainer(models("tiny/v3"), part="eagle", head=path("eagle/eagle1-v3"), threads=1) as trainer:
        assert not any(x.is_new for x in trainer.tensors.values())
    with pytest.raises(TypeError, match="no option draft_vocab_size"):
        verbatim.Trainer(models("tiny/v3"), part="eagle3", draft_vocab_size=6)
