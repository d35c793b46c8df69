NGPU=8 torchrun --nnodes 4 --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_70b \
  --training.steps 50 --compile.enable
