torchrun --nnodes 32 --nproc_per_node 8 pretrain_gpt.py --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 \
  --num-attention-heads 128 --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --swiglu \
  --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0.0 \
  --hidden-dropout 0.0 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 \
  --qk-pos-emb-head-dim 64 --v-head-dim 128 --num-experts 256 --moe-layer-freq "([0]*3+[1]*58)" \
  --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 --vocab-size 129280 \
  --bf16 --micro-batch-size 1 --global-batch-size 2048 --pipeline-model-parallel-size 8 --tensor-model-parallel-size 2 \
  --expert-model-parallel-size 32 --expert-tensor-parallel-size 1 --sequence-parallel --use-distributed-optimizer \
  --pipeline-model-parallel-layout "Et*3|(tt|)*13(tttt|)*5(ttt|)*4L" --num-virtual-stages-per-pipeline-rank 3 \
  --recompute-granularity selective --recompute-modules mla_up_proj mlp
