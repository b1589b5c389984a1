"""Programs that train a tiny model with the Trainer of Transformers: they need no network, and import for seconds."""

from __future__ import annotations

from typing import Final

TRAINER: Final = """
import json, os, sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

class Words(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.words = torch.randint(0, 64, (count, 8), generator=torch.Generator().manual_seed(seed))
    def __len__(self):
        return len(self.words)
    def __getitem__(self, number):
        return {"input_ids": self.words[number], "labels": self.words[number]}

def trainer(callbacks=(), seed=1, **more):
    set_seed(seed)
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=8, bos_token_id=0, eos_token_id=0)
    given = dict(
        output_dir="out", max_steps=12, logging_steps=2, eval_strategy="steps", eval_steps=6, save_strategy="steps",
        save_steps=4, save_total_limit=2, per_device_train_batch_size=4, report_to="none", disable_tqdm=True,
        use_cpu=True, learning_rate=1e-3, hub_token="hidden",
    )
    args = TrainingArguments(**{**given, **more})
    return Trainer(
        GPT2LMHeadModel(config), args, train_dataset=Words(64, 1), eval_dataset=Words(8, 2), callbacks=list(callbacks)
    )

def digest(trainer):
    import hashlib
    parts = (value.numpy().tobytes() for _, value in sorted(trainer.model.state_dict().items()))
    return hashlib.sha256(b"".join(parts)).hexdigest()
"""
NOTICE: Final = """
class Notice(TrainerCallback):
    "Gives notice at the end of a step, as the agent does."
    def __init__(self, at, goes=True):
        self.at, self.goes = at, goes
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.at and os.environ["NSML_ATTEMPT"] == "1" and state.is_world_process_zero:
            run = os.environ["NSML_RUN_DIR"]
            with open(f"{run}/staged", "w") as file:
                json.dump({"goes": self.goes, "reason": "gives way"}, file)
            os.rename(f"{run}/staged", f"{run}/notice.json")
            import time
            time.sleep(0.3)  # a notice is looked for four times a second
"""
"""Further lines: a callback that gives notice."""
