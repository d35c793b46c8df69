"""Launch scripts, configs and logs of training programs, read into what they state of a job, its plan and its runs."""
