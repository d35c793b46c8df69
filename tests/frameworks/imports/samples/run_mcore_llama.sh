#!/bin/bash
# In the manner of Pai-Megatron-Patch: every value is an argument by its place.
ENV=$1
MODEL_SIZE=$2 BATCH_SIZE=$3 GLOBAL_BATCH_SIZE=$4 SEQ_LEN=$5 PR=$6
TP=$7 PP=$8 CP=$9 SP=${10} DO=${11} AC=${12}
if [ $ENV = dsw ]; then
    NNODES=1
    GPUS_PER_NODE=8
elif [ $ENV = dlc ]; then
    NNODES=4
    GPUS_PER_NODE=8
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
if [ $MODEL_SIZE = 8B ]; then
    NUM_LAYERS=32 HIDDEN_SIZE=4096 NUM_ATTN_HEADS=32 INTERMEDIATE_SIZE=14336
    gqa_options=" --group-query-attention --num-query-groups 8"
fi
if [ $AC = full ]; then
    ac_options=" --recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ $AC = sel ]; then
    ac_options=" --recompute-activations"
fi
if [ $PR = fp16 ]; then
    pr_options=" --fp16"
elif [ $PR = bf16 ]; then
    pr_options=" --bf16"
fi
[ $DO = true ] && do_options=" --use-distributed-optimizer"
if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options=" --sequence-parallel"
fi
megatron_options=" --attention-dropout 0.0 --hidden-dropout 0.0 --micro-batch-size ${BATCH_SIZE} \
    --global-batch-size ${GLOBAL_BATCH_SIZE} --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} \
    --num-attention-heads ${NUM_ATTN_HEADS} --ffn-hidden-size ${INTERMEDIATE_SIZE} --seq-length ${SEQ_LEN} \
    --max-position-embeddings 131072 --max-padding-length ${SEQ_LEN} --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} --context-parallel-size ${CP} --extra-vocab-size 256 \
    --patch-tokenizer-type LLama3Tokenizer --swiglu --normalization RMSNorm --use-rotary-position-embeddings \
    --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256"
run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_llama.py ${megatron_options} ${pr_options} ${ac_options} \
 ${do_options} ${sp_options} ${gqa_options}"
echo ${run_cmd}
eval ${run_cmd}
