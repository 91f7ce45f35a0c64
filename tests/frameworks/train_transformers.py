"""The Trainer of Hugging Face takes the group that is there."""

import tempfile

import gradlane.torch as _  # noqa: F401  defines the backend
import torch
import torch.distributed as dist
from ending import tell
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

dist.init_process_group("gradlane")
torch.manual_seed(dist.get_rank())
tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=40, num_labels=2, **tiny))
generator = torch.Generator().manual_seed(1)
rows = [{"input_ids": torch.randint(0, 40, (6,), generator=generator), "labels": number % 2} for number in range(32)]
with tempfile.TemporaryDirectory() as home:
    arguments = TrainingArguments(
        output_dir=home,
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
tell(model)
dist.destroy_process_group()
