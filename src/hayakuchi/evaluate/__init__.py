"""Quality of trained models, measured on what they were not trained on."""
