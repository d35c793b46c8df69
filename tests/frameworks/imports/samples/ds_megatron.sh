deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py --num-layers 40 --hidden-size 5120 --num-attention-heads 40 \
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 2 --global-batch-size 512 \
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --bf16 --checkpoint-activations \
  --deepspeed --deepspeed_config ds_config.json --zero-stage 1 --attention-dropout 0 --hidden-dropout 0
