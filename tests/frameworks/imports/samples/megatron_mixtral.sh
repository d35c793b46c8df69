export NNODES=8
python -m torch.distributed.run --nproc_per_node 8 --nnodes $NNODES --rdzv_backend c10d pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --init-method-std 0.01 \
  --group-query-attention --num-query-groups 8 --disable-bias-linear --seq-length 4096 \
  --max-position-embeddings 32768 --position-embedding-type rope --normalization RMSNorm --swiglu \
  --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 \
  --num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 \
  --moe-grouped-gemm --moe-token-dispatcher-type alltoall \
  --micro-batch-size 1 --global-batch-size 256 --bf16 \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --expert-model-parallel-size 8 \
  --num-layers-per-virtual-pipeline-stage 8 --sequence-parallel --use-distributed-optimizer \
  --tokenizer-type Llama2Tokenizer --tokenizer-model ${TOKENIZER_MODEL}
