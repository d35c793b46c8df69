"""A training script of one's own, ``train.py``: the model and the batch, in the words of Hugging Face's examples.

Sources: examples/pytorch/language-modeling/run_clm.py and run_clm_no_trainer.py of transformers.
"""

from __future__ import annotations

import json

from jointopt.jobs.catalog.models import known_model
from jointopt.measure.exports.intent import Intent

PROGRAM, MODEL_FILE = "train.py", "config.json"


def script_words(intent: Intent) -> tuple[str, ...]:
    """The words after ``train.py`` that no file of DeepSpeed or Accelerate holds: the model, its sequences, a batch."""
    model = ("--config_name", MODEL_FILE) if model_files(intent) else ("--model_name_or_path", intent.model.name)
    batch = ("--per_device_train_batch_size", str(intent["micro_batch_size"]))
    return (*model, "--block_size", str(intent.job.training.seq_length), *batch)


def model_files(intent: Intent) -> dict[str, str]:
    """The model's ``config.json``, where the catalogue does not have it and the job does."""
    known, config = known_model(intent.model.name), intent.model.config
    return {MODEL_FILE: json.dumps(dict(config), indent=2) + "\n"} if config and known != intent.model else {}
