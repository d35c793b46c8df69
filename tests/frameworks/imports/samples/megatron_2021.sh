#!/bin/bash
# In the manner of examples/pretrain_gpt3_175B.sh of 2021.
#SBATCH --nodes=16 --ntasks-per-node=8 --job-name=gpt
options=" \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --num-layers 96 --hidden-size 12288 \
    --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 \
    --global-batch-size 1536 --rampup-batch-size 16 16 5859375 --train-samples 146484375 \
    --lr-decay-samples 126953125 --lr-warmup-samples 183105 --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine \
    --log-interval 10 --eval-iters 40 --eval-interval 1000 --data-path data --vocab-file gpt2-vocab.json \
    --merge-file gpt2-merges.txt --save-interval 1000 --split 98,2,0 --clip-grad 1.0 --weight-decay 0.1 \
    --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 --tensorboard-dir tb --fp16 --DDP-impl local \
    --tokenizer-type GPT2BPETokenizer --data-impl mmap --activations-checkpoint-method uniform "
srun -l --container-image megatron python -u pretrain_gpt.py ${options}
