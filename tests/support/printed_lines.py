"""Lines in the manner of well-known programs: with metrics, and what is in them; and without."""

from __future__ import annotations

from typing import Final, NamedTuple


class Printed(NamedTuple):
    """What a program prints, and the points in it: step and values."""

    program: str
    text: str
    points: tuple[tuple[float | None, dict[str, float]], ...]


TRAINING: Final = (
    Printed(
        "HF Trainer 4",
        "{'loss': 1.23, 'learning_rate': 5e-05, 'epoch': 0.5}\n",
        ((0.5, {"loss": 1.23, "learning_rate": 5e-05}),),
    ),
    Printed(
        "HF Trainer 5",
        "{'loss': '0.6931', 'grad_norm': '1.5', 'learning_rate': '5e-05', 'epoch': '1'}\n",
        ((1, {"loss": 0.6931, "grad_norm": 1.5, "learning_rate": 5e-05}),),
    ),
    Printed(
        "HF Trainer between updates of its bar",
        "\r 10%|# | 10/100 [00:01<00:09, 10.0it/s]"
        "\r                                        "
        "\r{'eval_loss': 0.5, 'eval_accuracy': 0.75, 'epoch': 1.0}\n",
        ((1, {"eval_loss": 0.5, "eval_accuracy": 0.75}),),
    ),
    Printed(
        "Keras 3",
        "Epoch 1/10\n"
        "\x1b[1m50/100\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m━━━━━━━━━━\x1b[0m \x1b[1m0s\x1b[0m 5ms/step"
        " - accuracy: 0.8000 - loss: 0.5000\n"
        "\x1b[1m100/100\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m1s\x1b[0m 5ms/step"
        " - accuracy: 0.9100 - loss: 0.3000 - val_accuracy: 0.9000 - val_loss: 0.3500\n"
        "Epoch 2/10\n"
        "50/100 ━━━━━━━━━━━━━━━━━━━━ 0s 5ms/step - accuracy: 0.9200 - loss: 0.2800\n",
        (
            (50, {"accuracy": 0.8, "loss": 0.5}),
            (100, {"accuracy": 0.91, "loss": 0.3, "val_accuracy": 0.9, "val_loss": 0.35}),
            (150, {"accuracy": 0.92, "loss": 0.28}),
        ),
    ),
    Printed(
        "Keras 2",
        "100/100 [==============================] - 2s 5ms/step - loss: 0.3 - accuracy: 0.91\n",
        ((100, {"loss": 0.3, "accuracy": 0.91}),),
    ),
    Printed(
        "Keras 2 with an ETA",
        " 12/100 [==>...........................] - ETA: 3s - loss: 2.3026 - accuracy: 0.1000\r",
        ((12, {"loss": 2.3026, "accuracy": 0.1}),),
    ),
    Printed(
        "Lightning",
        "Epoch 0:  50%|#####     | 5/10 [00:00<00:01, 12.30it/s, loss=0.3, v_num=0]\r"
        "Epoch 0: 100%|##########| 10/10 [00:01<00:00, 12.30it/s, loss=0.2, v_num=0]\n"
        "Epoch 1:  50%|#####     | 5/10 [00:00<00:01, 12.30it/s, v_num=0, train_loss_step=0.100]\n",
        ((5, {"loss": 0.3}), (10, {"loss": 0.2}), (15, {"train_loss_step": 0.1})),
    ),
    Printed(
        "tqdm",
        "train:  10%|█         | 10/100 [00:01<00:09,  9.99it/s, loss=1.5, lr=0.001]\n",
        ((10, {"loss": 1.5, "lr": 0.001}),),
    ),
    Printed(
        "tqdm without a total",
        "loss=0.5 at 7\n",
        ((None, {"loss": 0.5}),),
    ),
    Printed("key=value", "step 10: loss=0.3 acc=0.9\n", ((10, {"loss": 0.3, "acc": 0.9}),)),
    Printed("epochs", "epoch=1 loss=0.5\n", ((1, {"loss": 0.5}),)),
    Printed(
        "PyTorch's ImageNet example",
        "Epoch: [0][ 10/391]\tTime  0.050 ( 0.100)\tData  0.001 ( 0.020)\tLoss 6.9e+00 (7.0e+00)"
        "\tAcc@1  10.20 (  9.80)\tAcc@5  20.00 ( 21.00)\n"
        "Epoch: [1][ 10/391]\tTime  0.050 ( 0.100)\tLoss 5.0e+00 (5.1e+00)\n",
        (
            (10, {"Time": 0.05, "Data": 0.001, "Loss": 6.9, "Acc@1": 10.2, "Acc@5": 20.0}),
            (401, {"Time": 0.05, "Loss": 5.0}),
        ),
    ),
    Printed(
        "PyTorch's MNIST example",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300000\n"
        "\nTest set: Average loss: 0.0265, Accuracy: 9910/10000 (99%)\n\n"
        "Train Epoch: 2 [0/60000 (0%)]\tLoss: 0.200000\n",
        (
            (640, {"Loss": 2.3}),
            (None, {"Average_loss": 0.0265, "Accuracy": 0.991}),
            (60000, {"Loss": 0.2}),
        ),
    ),
    Printed(
        "PyTorch's quickstart",
        "Epoch 1\n-------------------------------\nloss: 2.303494  [   64/60000]\n"
        "Test Error: \n Accuracy: 71.8%, Avg loss: 0.789012 \n\nEpoch 2\n-------\nloss: 1.5  [   64/60000]\n",
        (
            (64, {"loss": 2.303494}),
            (None, {"Accuracy": 71.8, "Avg_loss": 0.789012}),
            (60064, {"loss": 1.5}),
        ),
    ),
    Printed(
        "a PyTorch tutorial",
        "Epoch [1/5], Step [100/600], Loss: 0.5234\nEpoch [2/5], Step [100/600], Loss: 0.1234\n",
        ((100, {"Loss": 0.5234}), (700, {"Loss": 0.1234})),
    ),
    Printed("PyTorch's CIFAR tutorial", "[1,  2000] loss: 2.173\n", ((None, {"loss": 2.173}),)),
    Printed(
        "PyTorch's language model example",
        "| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.10 | loss  7.60 | ppl  2000.12\n",
        ((200, {"lr": 20.0, "ms/batch": 12.1, "loss": 7.6, "ppl": 2000.12}),),
    ),
    Printed(
        "nanoGPT",
        "iter 100: loss 3.2000, time 20.11ms, mfu 30.10%\n"
        "step 250: train loss 2.4293, val loss 2.4447\n",
        (
            (100, {"loss": 3.2, "time": 20.11, "mfu": 30.1}),
            (250, {"train_loss": 2.4293, "val_loss": 2.4447}),
        ),
    ),
    Printed(
        "Megatron-LM",
        " iteration      100/    1000 | consumed samples:         3200 | elapsed time per iteration (ms): 302.1 |"
        " learning rate: 1.500E-04 | lm loss: 6.507E+00 | loss scale: 1.0 | grad norm: 1.212 |\n",
        (
            (
                100,
                {
                    "consumed_samples": 3200.0,
                    "elapsed_time_per_iteration": 302.1,
                    "learning_rate": 1.5e-04,
                    "lm_loss": 6.507,
                    "loss_scale": 1.0,
                    "grad_norm": 1.212,
                },
            ),
        ),
    ),
    Printed(
        "fairseq",
        "2024-01-01 12:00:00 | INFO | train_inner | epoch 001:    100 / 1000 loss=5.4, nll_loss=4.1, ppl=17.2,"
        " wps=31000.1, lr=0.0005, gnorm=1.2\n",
        (
            (
                100,
                {
                    "loss": 5.4,
                    "nll_loss": 4.1,
                    "ppl": 17.2,
                    "wps": 31000.1,
                    "lr": 0.0005,
                    "gnorm": 1.2,
                },
            ),
        ),
    ),
    Printed(
        "mmengine",
        "11/25 12:00:00 - mmengine - INFO - Epoch(train)  [1][ 50/391]  lr: 1.0000e-03  eta: 0:12:34"
        "  time: 0.2000  data_time: 0.1000  memory: 1234  loss: 0.9000\n",
        ((50, {"lr": 0.001, "time": 0.2, "data_time": 0.1, "memory": 1234.0, "loss": 0.9}),),
    ),
    Printed(
        "detectron2",
        "[11/25 12:00:00 d2.utils.events]:  eta: 0:10:00  iter: 19  total_loss: 1.2  loss_cls: 0.5  time: 0.2000"
        "  lr: 0.0001  max_mem: 2500M\n",
        ((19, {"total_loss": 1.2, "loss_cls": 0.5, "time": 0.2, "lr": 0.0001}),),
    ),
    Printed(
        "XGBoost",
        "[10]\ttrain-rmse:0.53000\teval-rmse:0.61000\n",
        ((10, {"train-rmse": 0.53, "eval-rmse": 0.61}),),
    ),
    Printed(
        "LightGBM",
        "[10]\ttraining's binary_logloss: 0.5\tvalid_0's auc: 0.9\n",
        ((10, {"training_binary_logloss": 0.5, "valid_0_auc": 0.9}),),
    ),
    Printed("scikit-learn", "Iteration 1, loss = 2.30258509\n", ((1, {"loss": 2.30258509}),)),
    Printed(
        "JSON lines",
        '{"step": 10, "train/loss": 0.5, "lr": 0.001}\n',
        ((10, {"train/loss": 0.5, "lr": 0.001}),),
    ),
    Printed(
        "logging",
        "2026-11-25 10:00:00,123 INFO trainer: step=100 loss=0.25 lr=1e-3\r\n",
        ((100, {"loss": 0.25, "lr": 0.001}),),
    ),
    Printed("colours", "\x1b[32mstep 3\x1b[0m \x1b[1mloss: \x1b[0m0.5\n", ((3, {"loss": 0.5}),)),
    Printed(
        "two losses of an epoch",
        "Epoch 3 train loss: 0.5 val loss: 0.4\n",
        ((3, {"train_loss": 0.5, "val_loss": 0.4}),),
    ),
    Printed("reinforcement learning", "episode 10 reward 21.0\n", ((10, {"reward": 21.0}),)),
)

ORDINARY: Final = r"""
Epoch 3/10
Traceback (most recent call last):
  File "/app/main.py", line 12, in loss
ValueError: step must be positive
2026-11-25 10:00:00 INFO server started pid=123 port=8080
INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)
INFO:     127.0.0.1:51234 - "GET /metrics?step=3&loss=0.5 HTTP/1.1" 200 OK
127.0.0.1 - - [25/Nov/2026:10:00:00 +0000] "GET /loss=1 HTTP/1.1" 404 153 "-" "curl/7.88.1"
level=info ts=1700000000.123 caller=main.go:56 msg="listening" addr=:9090 workers=4
{"level": 30, "time": 1700000000123, "pid": 17, "hostname": "n1", "msg": "ready"}
connect to db:5432 as user:1000
host: n1 port: 29500 rank: 0 world_size: 8 local_rank: 0
[rank0]: NCCL version 2.18.1+cuda12.1
torch==2.1.0 torchvision==0.16.0
torch: 2.1.0, CUDA: 12.1, cuDNN: 8902
Python 3.11.7 (main, Jan  1 2024, 12:00:00) [GCC 12.2.0] on linux
Namespace(batch_size=32, epochs=10, lr=0.001, loss=0.5, seed=42)
TrainingArguments(learning_rate=5e-05, loss_weight=1.0, num_train_epochs=3.0)
CrossEntropyLoss(label_smoothing=0.1)
seed: 42
batch_size: 32
lr: 0.001
loss_weight: 0.5
  "accuracy_threshold": 0.95,
Total params: 1,234,567
Trainable params: 1234567
Number of parameters: 1.3B
Downloading torch-2.1.0-cp311-cp311-manylinux1_x86_64.whl (670.2 MB)
     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 670.2/670.2 MB 1.2 MB/s eta 0:00:00
Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00,  1.5it/s]
model.safetensors:  50%|#####     | 500M/1.00G [00:10<00:10, 50.0MB/s]
Map (num_proc=4): 100%|##########| 1000/1000 [00:01<00:00, 900.00 examples/s]
Saving model checkpoint to /out/checkpoint-500
Saving /out/epoch=3-step=100-val_loss=0.25.ckpt
Epoch 7, global step 400: 'val_loss' was not in top 3
Resumed at step 100
Step 1/10 : FROM python:3.10
Step 2/10 : ENV LOSS=0
5 packets transmitted, 5 received, 0% packet loss, time 4005ms
packet loss: 5%
Mem: 32768 total, 1024 free
  1234 root      20   0  162.1m  12.3m   9.1m S   0.3   0.1   0:00.10 python
12:00:01.123456 IP 10.0.0.1.443 > 10.0.0.2.51234: Flags [P.], seq 1:100, ack 1, win 502, length 99
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-12345678-1234-1234-1234-123456789012)
| 0   N/A  N/A      1234      C   python                           1234MiB |
date=2026-11-25 time=10:00:00 zone=UTC
url=http://example.com:8080/a?b=1#c=2
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
commit 1234567 (HEAD -> main, tag: v1.2.3)
make: *** [Makefile:10: all] Error 2
exit status: 1
cost=0 retries=3 timeout=30
WARNING: loss is not a number, stopping
the accuracy of the network on the 10000 test images: 54 %
usage: main.py [--lr LR] [--loss LOSS]
Collecting package metadata (current_repodata.json): ...working... done
ssh: connect to host 10.0.0.1 port 22: Connection refused
Listening on tcp://0.0.0.0:8786, dashboard at :8787
a=1 b=2 c=3
x: 1
""".strip("\n")
"""Lines without metrics, as servers, installers, tools and training programs print them."""
