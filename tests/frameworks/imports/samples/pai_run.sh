cd examples/llama3_1
sh run_mcore_llama.sh dlc 8B 1 256 8192 bf16 2 2 1 true true sel
