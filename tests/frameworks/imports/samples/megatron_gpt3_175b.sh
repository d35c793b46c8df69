#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=16
GPT_MODEL_ARGS="--num-layers 96 --hidden-size 12288 --num-attention-heads 96 \
  --seq-length 2048 --max-position-embeddings 2048"
options=" \
    $GPT_MODEL_ARGS \
    --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 16 \
    --num-layers-per-virtual-pipeline-stage 2 \
    --micro-batch-size 1 \
    --global-batch-size 1536 \
    --train-samples 146484375 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --tokenizer-type GPT2BPETokenizer \
    --recompute-activations \
    --attention-dropout 0 --hidden-dropout 0 \
    --fp16"
srun -l -N $NUM_NODES --ntasks-per-node=8 sh -c "python -u pretrain_gpt.py ${options}"
