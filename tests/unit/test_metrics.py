from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pumasi.core.metrics import MetricParser, Reading, parse_line

KERAS_3 = (
    "\x1b[1m{0}/235\x1b[0m \x1b[32m━━━━━━━━━━━━\x1b[0m\x1b[37m━━━━━━━━\x1b[0m \x1b[1m2s\x1b[0m 7ms/step"
    " - accuracy: 0.8712 - loss: 0.4312"
)

KERAS: dict[str, Reading] = {
    "235/235 ━━━━━━━━━━━━━━━━━━━━ 2s 7ms/step - accuracy: 0.8712 - loss: 0.4312 - val_accuracy: 0.91 - val_loss: 0.3": (
        Reading({"accuracy": 0.8712, "loss": 0.4312, "val_accuracy": 0.91, "val_loss": 0.3}, 235)
    ),
    KERAS_3.format(" 34"): Reading({"accuracy": 0.8712, "loss": 0.4312}, 34),
    "\b" * 90 + KERAS_3.format("235"): Reading({"accuracy": 0.8712, "loss": 0.4312}, 235),
    KERAS_3.format("235") + "\b" * 90: Reading({"accuracy": 0.8712, "loss": 0.4312}, 235),
    KERAS_3.format(" 34") + "\b" * 90 + "\r" + KERAS_3.format(" 35"): Reading({"accuracy": 0.8712, "loss": 0.4312}, 35),
    "      7/Unknown 1s 90ms/step - loss: 2.3011": Reading({"loss": 2.3011}),
    "235/235 - 2s - 7ms/step - accuracy: 0.8712 - loss: 9.3120e-05": Reading(
        {"accuracy": 0.8712, "loss": 9.312e-05}, 235
    ),
    "1079/1079 - 21s - loss: 0.2431 - 21s/epoch - 19ms/step": Reading({"loss": 0.2431}, 1079),
    "  1/235 [..............................] - ETA: 2:34 - loss: 2.3026 - accuracy: 0.1250": (
        Reading({"loss": 2.3026, "accuracy": 0.125}, 1)
    ),
    "32/32 [==============================] - 47s 115ms/step - sparse_categorical_accuracy: 0.1192": (
        Reading({"sparse_categorical_accuracy": 0.1192}, 32)
    ),
    "60000/60000 [==============================] - 2s 33us/sample - loss: 0.2201 - acc: 0.9345": (
        Reading({"loss": 0.2201, "acc": 0.9345}, 60000)
    ),
    "10/10 [==============================] - 1s 9ms/step - wobble: 0.2500": Reading({"wobble": 0.25}, 10),
    "160/160 - 532s - loss: nan - val_loss: inf": Reading({"loss": math.nan, "val_loss": math.inf}, 160),
    "Training loss (for one batch) at step 200: 1.2345": Reading({"training_loss": 1.2345}, 200),
    "Training acc over epoch: 0.7105": Reading({"training_acc": 0.7105}),
    "Validation acc: 0.7865": Reading({"validation_acc": 0.7865}),
}

TENSORFLOW: dict[str, Reading] = {
    "Epoch: 0, accuracy: 0.800000, train_loss: 0.500000.": Reading({"accuracy": 0.8, "train_loss": 0.5}, None, 0),
    "Epoch 1, Loss: 0.13, Accuracy: 96.07, Test Loss: 0.06, Test Accuracy: 98.02": (
        Reading({"loss": 0.13, "accuracy": 96.07, "test_loss": 0.06, "test_accuracy": 98.02}, None, 1)
    ),
    "Step #10\tLoss: 0.708431": Reading({"loss": 0.708431}, 10),
    "INFO:tensorflow:loss = 0.5, step = 100 (0.512 sec)": Reading({"loss": 0.5}, 100),
    "INFO:tensorflow:Saving dict for global step 100: accuracy = 0.9, global_step = 100, loss = 0.3": (
        Reading({"accuracy": 0.9, "loss": 0.3}, 100)
    ),
    "Epoch 1: loss tf.Tensor(0.69, shape=(), dtype=float32)": Reading({"loss": 0.69}, None, 1),
    "I 2026-11-17T12:47:08.315363796Z master-replica-0 160/160 - 532s - loss: 29.2287 - val_loss: 15.1582": (
        Reading({"loss": 29.2287, "val_loss": 15.1582})
    ),
}

PYTORCH: dict[str, Reading] = {
    "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.308500": Reading({"loss": 2.3085}, 640, 1),
    "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.308500\tLoss Scale: 65536.0": (
        Reading({"loss": 2.3085, "loss_scale": 65536.0}, 640, 1)
    ),
    "Test set: Average loss: 0.0462, Accuracy: 9848/10000 (98%)": (
        Reading({"test_average_loss": 0.0462, "test_accuracy": 0.9848})
    ),
    "Test set: Average loss: 0.0462, Accuracy: 98.48%": Reading({"test_average_loss": 0.0462, "test_accuracy": 0.9848}),
    "Train Epoch: \t1, Loss: \t2.1234": Reading({"loss": 2.1234}, None, 1),
    "loss: 2.300000  [   64/60000]": Reading({"loss": 2.3}, 64),
    " Accuracy: 88.1%, Avg loss: 0.350000 ": Reading({"accuracy": 0.881, "avg_loss": 0.35}),
    "Epoch [1/5], Step [100/600], Loss: 0.1234": Reading({"loss": 0.1234}, 100, 1),
    "[1,  2000] loss: 2.196": Reading({"loss": 2.196}, 2000, 1),
    "[1, 12000] loss: 1.301": Reading({"loss": 1.301}, 12000, 1),
    "Accuracy of the network on the 10000 test images: 54 %": Reading({"test_accuracy": 0.54}),
    "train Loss: 0.5817 Acc: 0.6967": Reading({"train_loss": 0.5817, "acc": 0.6967}),
    "val Loss: 0.2103 Acc: 0.9216": Reading({"val_loss": 0.2103, "val_acc": 0.9216}),
    "Best val Acc: 0.941176": Reading({"best_val_acc": 0.941176}),
    "[0/5][10/1583]\tLoss_D: 1.7459\tLoss_G: 6.1012\tD(x): 0.5613\tD(G(z)): 0.6816 / 0.0043": (
        Reading({"loss_d": 1.7459, "loss_g": 6.1012}, 10, 0)
    ),
    "| epoch   1 |   200/ 2928 batches | lr 5.00 | ms/batch 24.37 | loss  8.19 | ppl  3613.91": (
        Reading({"lr": 5.0, "loss": 8.19, "ppl": 3613.91}, 200, 1)
    ),
    "| end of epoch   1 | time: 78.9s | valid loss  5.79 | valid ppl   326.59": (
        Reading({"valid_loss": 5.79, "valid_ppl": 326.59}, None, 1)
    ),
    "| End of training | test loss  5.32 | test ppl   204.38": Reading({"test_loss": 5.32, "test_ppl": 204.38}),
    "====> Epoch: 1 Average loss: 164.5182": Reading({"average_loss": 164.5182}, None, 1),
    "====> Test set loss: 127.6": Reading({"test_set_loss": 127.6}),
    "Episode 10\tLast reward: 12.00\tAverage reward: 10.55": Reading(
        {"last_reward": 12.0, "average_reward": 10.55}, 10
    ),
    "Epoch: [0]  [ 10/100]  eta: 0:00:12  lr: 0.01  loss: 0.5 (0.6)  time: 0.1  data: 0.01  max mem: 1234": (
        Reading({"lr": 0.01, "loss": 0.5}, 10, 0)
    ),
    "Test:  [ 10/100]  eta: 0:00:12  loss: 0.5 (0.6)  acc1: 70.0 (71.0)  acc5: 90.1 (90.2)  time: 0.1": (
        Reading({"test_loss": 0.5, "test_acc1": 70.0, "test_acc5": 90.1}, 10)
    ),
    "Test:  Acc@1 70.123 Acc@5 90.200": Reading({"test_acc@1": 70.123, "test_acc@5": 90.2}),
    "Epoch: [0][  10/5005]\tTime  0.500 ( 0.600)\tData  0.01 ( 0.10)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.39 (  0.14)": (
        Reading({"loss": 6.9, "acc@1": 0.39}, 10, 0)
    ),
    "loss: tensor(2.3056, device='cuda:0', grad_fn=<NllLossBackward0>)": Reading({"loss": 2.3056}),
    "Epoch 0:  50%|█████     | 10/20 [00:01<00:01, 9.5it/s, loss=0.3, v_num=0]": Reading({"loss": 0.3}, 10, 0),
    "Epoch 0:  22%|██▏       | 4/18 [00:17<01:02,  4.47s/it, loss=10.072, v_num=193315]": (
        Reading({"loss": 10.072}, 4, 0)
    ),
    "Epoch 3/9  ━━━━━━━━━━ 23621/23621 0:00:00 • 0:13:10 35.65it/s v_num: 0 val_accuracy: 0.93735": (
        Reading({"val_accuracy": 0.93735}, 23621, 3)
    ),
    "│         test_acc          │    0.9225000143051147     │": Reading({"test_acc": 0.9225000143051147}),
    "Train: 3 [  50/1251 (  4%)]  Loss: 6.95 (6.97)  Time: 1.021s,  254.0/s  LR: 1.000e-05  Data: 0.5 (0.5)": (
        Reading({"loss": 6.95, "lr": 1e-05}, 50)
    ),
    "Epoch: 001, Loss: 1.9451, Train: 0.2643, Val: 0.178": Reading(
        {"loss": 1.9451, "train": 0.2643, "val": 0.178}, None, 1
    ),
}

OTHERS: dict[str, Reading] = {
    "I1115 21:26:43.123456 140 train.py:147] epoch:  1, train_loss: 0.2345, train_accuracy: 93.10, test_loss: 0.1": (
        Reading({"train_loss": 0.2345, "train_accuracy": 93.1, "test_loss": 0.1}, None, 1)
    ),
    "train epoch: 1, loss: 0.2345, accuracy: 93.10": Reading({"loss": 0.2345, "accuracy": 93.1}, None, 1),
    "eval epoch: 1, loss: 0.1045, accuracy: 96.80": Reading({"eval_loss": 0.1045, "eval_accuracy": 96.8}, None, 1),
    "Training set accuracy 0.9712166786193848": Reading({"training_set_accuracy": 0.9712166786193848}),
    "[1,0]<stdout>:Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.3": Reading({"loss": 2.3}, 0, 1),
    "epoch:1 loss:1.0084699392318726:  59%|█████▉    | 230/391 [00:31<00:20,  7.69it/s]": (
        Reading({"loss": 1.0084699392318726}, 230, 1)
    ),
    "100%|██████████| 5/5 [00:00<00:00, 12.1it/s, wobble=0.25]": Reading({"wobble": 0.25}, 5),
    "Evaluating: 100%|██████████| 5/5 [00:00<00:00, 12.1it/s, loss=0.25]": Reading({"eval_loss": 0.25}, 5),
    " iteration      122/  250000 | consumed samples:       124928 | elapsed time per iteration (ms): 86545.2 | "
    "learning rate: 9.150E-06 | global batch size:  1024 | lm loss: 2.504220E+00 | loss scale: 1.0 | grad norm: 0.231 "
    "| number of skipped iterations:   0 | number of nan iterations:   0 |": (
        Reading({"learning_rate": 9.15e-06, "lm_loss": 2.50422, "loss_scale": 1.0, "grad_norm": 0.231}, 122)
    ),
    "| epoch 001:    450 / 1891 loss=11.521, nll_loss=10.881, ppl=1886.05, num_updates=445, lr=8.9e-05, wall=882": (
        Reading({"loss": 11.521, "nll_loss": 10.881, "ppl": 1886.05, "lr": 8.9e-05}, 450, 1)
    ),
    "| epoch 010 | valid on 'valid' subset  1000 / 1311 loss=1.60": Reading({"valid_loss": 1.6}, None, 10),
    "step 250: train loss 2.4132, val loss 2.4987": Reading({"train_loss": 2.4132, "val_loss": 2.4987}, 250),
    "iter 0: loss 10.9886, time 45302.14ms, mfu -100.00%": Reading({"loss": 10.9886}, 0),
    "2026-01-01 10:00:00,123 - mmdet - INFO - Epoch [1][50/7330]\tlr: 1.978e-03, eta: 10:11:12, time: 0.41, "
    "data_time: 0.05, memory: 3000, loss_rpn_cls: 0.5, loss: 1.2": (
        Reading({"lr": 0.001978, "loss_rpn_cls": 0.5, "loss": 1.2}, 50, 1)
    ),
    "[0]\ttrain-rmse:0.51173\teval-rmse:0.52": Reading({"train_rmse": 0.51173, "eval_rmse": 0.52}, 0),
    "[10]\tvalid_0's binary_logloss: 0.5": Reading({"valid_0_binary_logloss": 0.5}, 10),
    "Iteration 1, loss = 0.50129711": Reading({"loss": 0.50129711}, 1),
    "    accuracy                           0.93     10000": Reading({"accuracy": 0.93}),
    "|    policy_gradient_loss | -0.00807    |": Reading({"policy_gradient_loss": -0.00807}),
    "wandb:   train/loss 0.31": Reading({"train/loss": 0.31}),
}

PLAIN: dict[str, Reading] = {
    "Test loss: 0.07": Reading({"test_loss": 0.07}),
    "Test accuracy: 0.98": Reading({"test_accuracy": 0.98}),
    "epoch 3: loss=0.1 acc=0.9": Reading({"loss": 0.1, "acc": 0.9}, None, 3),
    "epoch=3 loss=0.1": Reading({"loss": 0.1}, None, 3),
    "[epoch 1, step 200] loss 0.5": Reading({"loss": 0.5}, 200, 1),
    "Epoch:001/010 | Batch 0030/0234 | Cost: 2.31": Reading({"cost": 2.31}, 30, 1),
    "Loss after epoch 3: 0.12": Reading({"loss": 0.12}, None, 3),
    "Loss: 0.5 and accuracy: 0.25": Reading({"loss": 0.5, "accuracy": 0.25}),
    "Epoch 1 completed. Loss 0.5": Reading({"loss": 0.5}, None, 1),
    "LOSS -1.5e-3": Reading({"loss": -0.0015}),
    "loss .5": Reading({"loss": 0.5}),
    "Loss:0.5": Reading({"loss": 0.5}),
    "loss -> 0.5": Reading({"loss": 0.5}),
    "accuracy is 0.97": Reading({"accuracy": 0.97}),
    "Accuracy = 97.5 %": Reading({"accuracy": 0.975}),
    "Val. Loss: 0.6 |  Val. Acc: 70.1%": Reading({"val_loss": 0.6, "val_acc": 0.701}),
    "Train: loss 0.5 acc 0.9 | Val: loss 0.6 acc 0.8": (
        Reading({"loss": 0.5, "acc": 0.9, "val_loss": 0.6, "val_acc": 0.8})
    ),
    "Loss: 0.123 | Acc: 98.000% (4900/5000)": Reading({"loss": 0.123, "acc": 0.98}),
    "loss: nan": Reading({"loss": math.nan}),
    "loss: -inf": Reading({"loss": -math.inf}),
    "loss: 1,234.5": Reading({"loss": 1234.5}),
    "perplexity: 1,234,567": Reading({"perplexity": 1234567.0}),
    "Mean squared error: 0.25": Reading({"mean_squared_error": 0.25}),
    "top-1 accuracy: 0.75": Reading({"top_1_accuracy": 0.75}),
    "f1=0.5 f1_macro=0.25 r2: 0.125": Reading({"f1": 0.5, "f1_macro": 0.25, "r2": 0.125}),
    "data_loss: 0.5, pde_loss: 0.25": Reading({"data_loss": 0.5, "pde_loss": 0.25}),
    "Episode 3 reward 200": Reading({"reward": 200.0}, 3),
    "2026-11-15 21:26:43,123 - trainer.py:123 - INFO - loss=0.5": Reading({"loss": 0.5}),
    "[rank 3] loss: 0.5 on cuda:1": Reading({"loss": 0.5}),
    "(Worker pid=123, ip=10.0.0.7) loss: 0.5": Reading({"loss": 0.5}),
    "\x1b[31mloss\x1b[0m: 0.5": Reading({"loss": 0.5}),
    "loss: 0.5\r": Reading({"loss": 0.5}),
    "정확도: 0.93, 손실: 0.21": Reading({"정확도": 0.93, "손실": 0.21}),
}

OBJECTS: dict[str, Reading] = {
    '{"loss": 0.5, "accuracy": 0.9}': Reading({"loss": 0.5, "accuracy": 0.9}),
    '{"step": 7, "epoch": 1, "loss": 0.5, "batch_size": 32}': Reading({"loss": 0.5, "batch_size": 32.0}, 7, 1),
    '{"epoch": 1, "train": {"loss": 0.5, "acc": {"top1": 0.7}}}': (
        Reading({"train.loss": 0.5, "train.acc.top1": 0.7}, None, 1)
    ),
    '{"global_step": 7, "loss": NaN, "grad": -Infinity}': Reading({"loss": math.nan, "grad": -math.inf}, 7),
    '{"wobble": 0.25}': Reading({"wobble": 0.25}),
    '{"level": "info", "ts": 1763240000.5, "msg": "step done", "step": 7, "pid": 4711, "loss": 0.5, "ok": true}': (
        Reading({"loss": 0.5}, 7)
    ),
    'INFO:root:{"step": 7, "loss": 0.5}': Reading({"loss": 0.5}, 7),
    "{'loss': 0.6931, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 1.0}": (
        Reading({"loss": 0.6931, "grad_norm": 1.2, "learning_rate": 5e-05}, None, 1)
    ),
    "{'loss': '0.6931', 'grad_norm': '1.2', 'learning_rate': '5e-05', 'epoch': '0.5'}": (
        Reading({"loss": 0.6931, "grad_norm": 1.2, "learning_rate": 5e-05}, None, 0)
    ),
    "{'eval_loss': nan, 'eval_runtime': 6.0944, 'epoch': 4.97}": (
        Reading({"eval_loss": math.nan, "eval_runtime": 6.0944}, None, 4)
    ),
    "{'objective/kl': 10.5, 'loss/policy_avg': 0.0009, 'episode': 816, 'epoch': 0.91}": (
        Reading({"objective/kl": 10.5, "loss/policy_avg": 0.0009, "episode": 816.0}, None, 0)
    ),
    "{'test_acc': np.float64(0.92), 'test_loss': tensor(0.25, device='cuda:0'), 'best': None}": (
        Reading({"test_acc": 0.92, "test_loss": 0.25})
    ),
    "Epoch 3: {'loss': 0.5}": Reading({"loss": 0.5}, None, 3),
    '3/9 ━━━━━━ 1s 9ms/step - loss: 0.75{"step": 3, "loss": 0.5}': Reading({"loss": 0.5}, 3),
    "TrainOutput(global_step=100, training_loss=0.5, metrics={})": Reading({"training_loss": 0.5}, 100),
}

# What the official examples of the frameworks print, beyond the lines above.

HOROVOD: dict[str, Reading] = {
    "Step #10\tLoss: 0.016614": Reading({"loss": 0.016614}, 10),
    "[1,0]<stdout>:Step #10\tLoss: 0.016614": Reading({"loss": 0.016614}, 10),
    "Train Epoch     #1:  50%|█████     | 10/20 [00:10<00:10,  1.0s/it, loss=6.9, accuracy=0.3]": (
        Reading({"loss": 6.9, "accuracy": 0.3}, 10, 1)
    ),
    "Validate Epoch  #1: 100%|██████████| 10/10 [00:10<00:00,  1.0s/it, loss=2.1, accuracy=30.5]": (
        Reading({"val_loss": 2.1, "val_accuracy": 30.5}, 10, 1)
    ),
    "[Epoch 0 Batch 100] Training: accuracy=0.5, top-5=0.9": Reading({"accuracy": 0.5, "top_5": 0.9}, 100, 0),
    "INFO:root:Epoch[0] Batch [100]\tSpeed: 1234.56 samples/sec\taccuracy=0.512": Reading({"accuracy": 0.512}, 100, 0),
    "Average loss at step  2000 :  112.3": Reading({"average_loss": 112.3}, 2000),
    "{'accuracy': 0.97, 'loss': 0.09, 'global_step': 10000}": Reading({"accuracy": 0.97, "loss": 0.09}, 10000),
}

HUGGING_FACE: dict[str, Reading] = {
    "epoch 0: {'accuracy': 0.68, 'f1': 0.81}": Reading({"accuracy": 0.68, "f1": 0.81}, None, 0),
    "epoch 1: 45.00": Reading({"value": 45.0}, None, 1),
    "epoch 1: 45.00%": Reading({"value": 0.45}, None, 1),
    "11/18/2026 01:00:00 - INFO - __main__ - epoch 1: 45.00": Reading({"value": 45.0}, None, 1),
    "INFO:__main__:Epoch 1/3: 0.45": Reading({"value": 0.45}, None, 1),
    "step 10: 0.5": Reading({"value": 0.5}, 10),
    "Average test metrics from all folds: {'accuracy': 0.84, 'f1': 0.89}": Reading({"accuracy": 0.84, "f1": 0.89}),
    "11/18/2026 01:00:00 - INFO - __main__ - epoch 0: perplexity: 23.1 eval_loss: 3.1": (
        Reading({"perplexity": 23.1, "eval_loss": 3.1}, None, 0)
    ),
    "  train_loss               =     0.1234": Reading({"train_loss": 0.1234}),
    "  eval_accuracy            =     0.8505": Reading({"eval_accuracy": 0.8505}),
    "epoch 0: validation loss: 0.512345": Reading({"validation_loss": 0.512345}, None, 0),
    "epoch 1: tensor(0.5)": Reading({"value": 0.5}, None, 1),
    "Step 10/1000 | Average steps/second: 1.23 | Loss: 1.2345": Reading({"loss": 1.2345}, 10),
}

FLAX_AND_JAX: dict[str, Reading] = {
    "I1118 01:00:00.123456 140 logging_writer.py:48] [10] accuracy=0.5, loss=1.23": (
        Reading({"accuracy": 0.5, "loss": 1.23}, 10)
    ),
    "train epoch 001 loss 0.6931 accuracy 60.12": Reading({"loss": 0.6931, "accuracy": 60.12}, None, 1),
    "eval epoch: 1, loss: 110.1234, BCE: 90.1234, KLD: 20.1234": (
        Reading({"eval_loss": 110.1234, "eval_bce": 90.1234, "eval_kld": 20.1234}, None, 1)
    ),
    "train step: 0, loss: 2.5, accuracy: 20.10": Reading({"loss": 2.5, "accuracy": 20.1}, 0),
}

MORE_PYTORCH: dict[str, Reading] = {
    "===> Epoch[1](1/50): Loss: 0.1234": Reading({"loss": 0.1234}, None, 1),
    "===> Epoch 1 Complete: Avg. Loss: 0.1234": Reading({"avg_loss": 0.1234}, None, 1),
    "===> Avg. PSNR: 22.1234 dB": Reading({"avg_psnr": 22.1234}),
    "Tue Nov 18 01:00:00 2026\tEpoch 1:\t[2000/123287]\tcontent: 123.4\tstyle: 12.3\ttotal: 140.1": (
        Reading({"content": 123.4, "style": 12.3, "total": 140.1}, 2000, 1)
    ),
    "12345\tTrain Epoch: 1 [0/60000 (0%)]\tLoss: 2.300000": Reading({"loss": 2.3}, 0, 1),
    "Epoch 0001 (0.123s) loss_train: 1.9451 loss_val: 1.9441 acc_val: 0.35": (
        Reading({"loss_train": 1.9451, "loss_val": 1.9441, "acc_val": 0.35}, None, 1)
    ),
    "[GPU0] Epoch 1 | Iter 0 | Train Loss 2.30542": Reading({"train_loss": 2.30542}, 0, 1),
    "Epoch: 1, Train loss: 5.344, Val loss: 4.114, Epoch time = 33.123s": (
        Reading({"train_loss": 5.344, "val_loss": 4.114}, None, 1)
    ),
}

MORE_KERAS: dict[str, Reading] = {
    "discriminator loss at step 0: 0.68": Reading({"discriminator_loss": 0.68}, 0),
    "running reward: 8.80 at episode 10": Reading({"running_reward": 8.8}, 10),
    "Episode * 10 * Avg Reward is ==> -300.1": Reading({"avg_reward": -300.1}),
    "Solved! Running reward is now 200.1 and the last episode runs to 500 time steps!": (
        Reading({"running_reward": 200.1})
    ),
    "Finished epoch 0, accuracy is 0.675000.": Reading({"accuracy": 0.675}, None, 0),
    "313/313 - 1s - loss: 0.0738 - accuracy: 0.9788 - 533ms/epoch - 2ms/step": (
        Reading({"loss": 0.0738, "accuracy": 0.9788}, 313)
    ),
}

EXAMPLES = {**HOROVOD, **HUGGING_FACE, **FLAX_AND_JAX, **MORE_PYTORCH, **MORE_KERAS}

NOTHING = [
    "",
    "   ",
    "TensorFlow version: 2.21.0",
    "accuracy-tools version: 2.21",
    "Python 3.11.7",
    "Collecting rouge-score==0.1.2",
    "2026-11-15 21:26:43",
    "2026-11-15T21:26:43.123456+09:00",
    "loss 2026-11-15",
    "I1115 21:26:43.123 file.cc:12] loading the loss module",
    "2026-11-15 21:26:43.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This binary is optimized",
    "127.0.0.1:8080",
    "Connected to score-server at 10.0.0.7:8080",
    "TensorBoard 2.20.0 at http://localhost:6006/ (Press CTRL+C to quit)",
    "reward server: http://loss.example.com:6006/step/3",
    "listening on [::1]:29500, step 3",
    "inet6 fe80::42:acff:fe11:2, ap 02:42:ac:11:00:02",
    "loss at 0x7f3a2b1c",
    "commit 4116e05, score board",
    '  File "loss.py", line 3, in accuracy',
    "/usr/lib/python3.11/loss.py:123: UserWarning: the loss is not scalar",
    "loss.py:12] computing",
    "    accuracy = 100 * correct / total",
    "    loss = 0.5 * (a + b)",
    "    if loss > 0.5:",
    "    assert loss == 0.5",
    "    return 0",
    "ValueError: loss must be a scalar, got shape (32, 10)",
    "logits (32, 10) loss shape: (32, 1)",
    "losses: [0.5, 0.25]",
    "Total params: 1,234",
    "Total params: 4.0 M",
    "number of parameters: 10.65M",
    "6 | train_acc | Accuracy         | 0     ",
    "loss memory: 1.5 GB",
    "max mem: 1234",
    "step eta: 0:00:12",
    "pid: 4711",
    "seed: 42",
    "batch_size: 32",
    "batch size: 32",
    "learning_rate: 0.001",
    "dropout: 0.1",
    "loss_weight: 0.5",
    "score_threshold: 0.5",
    "target_accuracy: 0.95",
    "precision: 16",
    "error: 2 files could not be read",
    "Return code: 1",
    "Namespace(batch_size=64, lr=1.0, reward_scale=0.5, seed=1)",
    "[1,1]<stdout>:Namespace(base_lr=0.001, kl_beta=0.1, epochs=100)",
    "TrainingArguments(learning_rate=5e-05, score_bonus=0.1)",
    '{"batch_size": 64, "lr": 0.1, "epochs": 3, "seed": 1}',
    '{"id": 7, "code": 200}',
    "{'cats': 0, 'dogs': 1}",
    "class weights: {'cats': 0.25, 'dogs': 0.75}",
    '{"loss": null}',
    '{"loss": [0.5, 0.25]}',
    '{"loss": "mse", "lr": "auto"}',
    "{broken json: ",
    "Loss: 1,234",
    "loss: 0,5",
    "loss",
    "loss:",
    "loss: none",
    "Epoch 3/10",
    "Epoch 3 in 1.2 sec",
    "[GPU0] Epoch 10 | Batchsize: 32 | Steps: 64",
    "Map:  50%|█████     | 5000/10000 [00:01<00:01, 5000.00 examples/s]",
    "100%|██████████| 10/10 [00:01<00:00, 9.5it/s]",
    "313/313 ━━━━━━━━━━━━━━━━━━━━ 0s 1ms/step",
    "Epoch 00001: val_loss improved from inf to 0.45123, saving model to weights.01-0.45.h5",
    "Epoch 3: ReduceLROnPlateau reducing learning rate to 0.0005.",
    "Validation loss decreased (inf --> 0.356877).  Saving model ...",
    "Accuracy for class: plane is 61.2 %",
    " Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.583",
    "|    learning_rate        | 0.0002      |",
    "|    fps      | 549     |",
    "time (ms) | forward: 652.41 | backward: 2164.52 | step: 1172.13",
    "[timer.py:189:stop] 0/40, SamplesPerSec=83.48609168106144, MemAllocated=0.26GB",
    "[Rank 0] step=40, skipped=2, lr=[5e-05], mom=[[0.9, 0.999]]",
    "python train.py --target-acc 0.9 --epochs 3",
    "Found 60000 images belonging to 10 classes.",
    "Step 1/5: preparing 3 files",
    "Epoch 3: finished gradual learning rate warmup to 0.002.",
    "Iter #3: 123.4 img/sec per GPU",
    "I1118 01:00:00.123456 140 logging_writer.py:83] [5] Hyperparameters: {'lr': 0.1}",
    "Learning rate for epoch 1 is 0.0010000000474974513",
    "  train_runtime            = 0:01:02.31",
    "Seen so far: 12864 samples",
    "Time for epoch 3: 12.5",
    "Time taken for epoch 3: 12.5",
    "lr at step 10: 0.001",
    "epoch 2: 12",
    "epoch 2: 12.3s",
    "epoch 2: 1.5 sec",
    "epoch 2: 0.5 0.25",
    "epoch 3: 10.0.0.7",
    "step 3: version 1.5",
]


def same(one: Reading | None, other: Reading | None) -> bool:
    """Equal, where nan equals nan."""
    return repr(one) == repr(other)


@pytest.mark.parametrize("line", [*KERAS, *TENSORFLOW, *PYTORCH, *OTHERS, *PLAIN, *OBJECTS, *EXAMPLES])
def test_a_line_that_people_read_as_metrics_is_read_so(line: str) -> None:
    expected = {**KERAS, **TENSORFLOW, **PYTORCH, **OTHERS, **PLAIN, **OBJECTS, **EXAMPLES}[line]
    assert same(parse_line(line), expected), parse_line(line)
    assert same(MetricParser().feed(0, line.encode()), expected)


@pytest.mark.parametrize("line", NOTHING)
def test_a_line_without_a_measure_gives_nothing(line: str) -> None:
    assert parse_line(line) is None
    assert MetricParser().feed(0, line.encode()) is None


def feed(parser: MetricParser, *lines: str, rank: int = 0) -> list[tuple[dict[str, float], int | None, int | None]]:
    readings = [parser.feed(rank, line.encode()) for line in lines]
    return [(reading.values, reading.step, reading.epoch) for reading in readings if reading]


def test_the_epoch_of_a_heading_holds_for_the_lines_that_follow() -> None:
    readings = feed(
        MetricParser(),
        "Epoch 1/2",
        "235/235 - 2s - 7ms/step - loss: 0.4",
        "Epoch 2/2",
        "235/235 - 2s - 7ms/step - loss: 0.3",
        "Test loss: 0.35",
    )
    assert readings == [({"loss": 0.4}, 235, 1), ({"loss": 0.3}, 235, 2), ({"test_loss": 0.35}, None, 2)]


def test_every_rank_has_an_epoch_of_its_own() -> None:
    parser = MetricParser()
    feed(parser, "Epoch 1/2", rank=0)
    feed(parser, "Epoch 2/2", rank=1)
    assert feed(parser, "loss: 0.5", rank=0) == [({"loss": 0.5}, None, 1)]
    assert feed(parser, "loss: 0.5", rank=1) == [({"loss": 0.5}, None, 2)]
    assert feed(parser, "loss: 0.5", rank=2) == [({"loss": 0.5}, None, None)]


def test_the_step_of_a_title_holds_until_another_step_or_epoch() -> None:
    parser = MetricParser()
    assert feed(parser, "--- Step 100 ---", "loss: 0.5", "acc: 0.9") == [
        ({"loss": 0.5}, 100, None),
        ({"acc": 0.9}, 100, None),
    ]
    assert feed(parser, "step 101 loss: 0.4", "acc: 0.9") == [({"loss": 0.4}, 101, None), ({"acc": 0.9}, None, None)]
    assert feed(parser, "Step: 200", "Epoch 2", "loss: 0.3") == [({"loss": 0.3}, None, 2)]


def test_a_sentence_about_a_step_is_no_title() -> None:
    assert feed(MetricParser(), "Step 2: downloading the data", "loss: 0.5") == [({"loss": 0.5}, None, None)]


def test_the_best_epoch_of_the_past_is_not_the_epoch_now() -> None:
    readings = feed(
        MetricParser(), "Epoch 9/9", "Restoring model weights from the end of the best epoch: 3.", "loss: 0.5"
    )
    assert readings == [({"loss": 0.5}, None, 9)]


def test_the_epoch_of_a_record_holds_for_the_lines_that_follow() -> None:
    assert feed(MetricParser(), "{'loss': 0.5, 'epoch': 2.0}", "acc: 0.9")[-1] == ({"acc": 0.9}, None, 2)


PARTS = """loss accuracy Epoch step : = [ ( ] ) | { } ' " , . - % / nan inf 1 0.5 1,234 2e5 12:30 ━ test val at of"""
parts = st.sampled_from([*PARTS.split(), "\t", "\b", "\r", "\x1b[1m"])


@given(st.binary(max_size=300))
@example(b"loss: \xff\xfe 0.5")
@example(b'{"loss": ' + b"9" * 400 + b"}")
@example(b'{"step": 1e999, "epoch": NaN, "loss": 1}')
@example(b"accuracy: 5/0")
@example(b"epoch 1,234 step 99999999999999999999 loss 1")
def test_no_bytes_can_upset_the_parser(line: bytes) -> None:
    MetricParser().feed(0, line)


@given(st.lists(parts, max_size=30), st.sampled_from(["", " "]))
def test_no_mixture_of_what_metrics_are_made_of_can_upset_the_parser(pieces: list[str], between: str) -> None:
    line = between.join(pieces)
    reading = parse_line(line)
    assert reading is None or reading.values
    MetricParser().feed(0, line.encode())


@given(st.text(max_size=300))
def test_no_text_can_upset_the_parser(text: str) -> None:
    parse_line(text)
    parse_line(f"loss: {text} 0.5")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    ["x", "9", " ", "loss ", "loss: 0.5 ", "loss: (", "[1,", "0.5/", "1,234", "a b-", "{", '{"a":', "\x1b[", "\b"],
)
def test_no_line_takes_long_however_long_it_is(unit: str) -> None:
    for length in (4000, 65_000, 1_000_000):
        line = unit * (length // len(unit))
        parse_line(line)
        parse_line("loss: 0.5 " + line)
        parse_line("loss" + line + "}")


def test_a_long_line_of_text_is_no_metric_but_its_last_frame_is() -> None:
    assert parse_line("loss: 0.5 " + "x" * 5000) is None
    assert parse_line(("3/9 loss: 0.75 " * 1000) + "\r4/9 loss: 0.5") == Reading({"loss": 0.5}, 4)


def test_a_long_object_is_read_whole() -> None:
    values = {f"metric_{i}": i / 7 for i in range(500)}
    assert parse_line(json.dumps({"step": 1, **values})) == Reading(values, 1)


def test_deep_objects_are_read_to_a_depth_that_people_use() -> None:
    nested: dict[str, object] = {"loss": 0.5}
    for _ in range(200):
        nested = {"a": nested}
    assert parse_line(json.dumps({"acc": 0.9, **nested})) == Reading({"acc": 0.9})


def test_a_step_without_a_number_of_its_own_is_no_metric_but_a_loss_that_is_not_a_number_is() -> None:
    assert parse_line("step 7: reading the next shard") is None
    reading = parse_line("step 7: loss nan")
    assert reading is not None
    assert math.isnan(reading.values["loss"])
