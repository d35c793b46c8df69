#!/bin/bash
# A training script in the manner of examples/llama: arrays, a condition, a header of Slurm.
#SBATCH --job-name=llama
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
CHECKPOINT_PATH=${1:-"checkpoints"}
GPUS_PER_NODE=8
NUM_NODES=${SLURM_NNODES:-1}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP_SIZE=2
DTYPE="fp8"
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank ${NODE_RANK:-0}
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32   # of the 8B
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --bf16
    --lr 0.00015
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
    )
elif [[ "$DTYPE" == "fp16" ]]; then
    DTYPE_ARGS+=("--fp16")
fi
PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
)
torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" ${DTYPE_ARGS[@]} \
    ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]} \
    --vocab-size 128256 --save "$CHECKPOINT_PATH" --frobnicate 3 2>&1 | tee log.txt
