"""Networks as OpenVINO models, with random weights; each file is one network or one family."""
