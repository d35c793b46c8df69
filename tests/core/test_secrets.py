"""No message, record or log repeats a secret."""

from __future__ import annotations

import pytest

from jointopt.core.secrets import masked, masked_words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cret@host/db", "postgresql://me:***@host/db"),
        ("postgresql+psycopg://me:p@ss:w@host:5432/db", "postgresql+psycopg://me:***@host:5432/db"),
        (
            "postgresql://host/db?user=me&password=s3cret&sslmode=on",
            "postgresql://host/db?user=me&password=***&sslmode=on",
        ),
        ("at mysql://a:b@c/d and redis://:x@y.", "at mysql://a:***@c/d and redis://:***@y."),
        ("WANDB_API_KEY='a b c' HF_TOKEN=abc", "WANDB_API_KEY=*** HF_TOKEN=***"),
        ("max_tokens=4096, run_tokens = 1e9", "max_tokens=4096, run_tokens = 1e9"),
        ("sqlite:///jointopt.db at 10:30, a@b", "sqlite:///jointopt.db at 10:30, a@b"),
    ],
)
def test_secrets_are_hidden_and_everything_else_stays(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_the_value_after_a_secret_option_is_hidden_too() -> None:
    words = ["tune", "--storage", "postgresql://me:x@h/d", "--api-key", "abc", "--password=abc", "--seed", "3"]
    assert masked_words(words) == ["tune", "--storage", "postgresql://me:***@h/d", "--api-key", "***", "--password=***",
                               "--seed", "3"]  # fmt: skip
