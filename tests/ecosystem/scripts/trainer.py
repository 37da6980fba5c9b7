"""Hugging Face's Trainer, as its documentation has it, or with a static graph."""

import sys
import tempfile

import torchvision_operators as torchvision_operators  # isort: skip
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counting(Dataset):
    def __len__(self):
        return 40_000

    def __getitem__(self, index):
        tokens = [(index + place) % 64 for place in range(16)]
        return {"input_ids": tokens, "labels": tokens}


config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
static = {"ddp_static_graph": True, "ddp_find_unused_parameters": False}
settings = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    use_cpu=True,
    disable_tqdm=True,
    report_to=[],
    **(static if sys.argv[1:] else {"gradient_accumulation_steps": 2}),
)
Trainer(GPT2LMHeadModel(config), settings, train_dataset=Counting()).train()
