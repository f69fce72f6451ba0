import logging


def setup_logger(log_path, debug=False):
    logger = logging.getLogger("eoh")
    logger.setLevel(logging.INFO)
    logger.handlers.clear()
    logger.addHandler(logging.FileHandler(log_path, mode="w", encoding="utf-8"))
    return logger
