"""Fine-tuning on mlx-lm's own trainer, schedule-free unless something else is asked for.

``settings`` says what may be asked, ``choice`` which optimizer that is, ``prepare`` decides the rest or refuses,
``session`` runs mlx-lm's ``train`` with the hooks in ``batches`` and ``periods``, ``folder`` owns the files.
"""
