torchrun --nnodes=16 --nproc-per-node=8 pretrain_gpt.py --num-layers 126 --hidden-size 16384 \
  --ffn-hidden-size 53248 --num-attention-heads 128 --group-query-attention --num-query-groups 8 --seq-length 8192 \
  --max-position-embeddings 8192 --use-rotary-position-embeddings --normalization RMSNorm --swiglu \
  --untie-embeddings-and-output-weights --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 \
  --vocab-size 128256 --make-vocab-size-divisible-by 128 --bf16 --micro-batch-size 1 --global-batch-size 512 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 2 \
  --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split --sequence-parallel \
  --use-distributed-optimizer --recompute-granularity full --recompute-method block --recompute-num-layers 3
