"""Machine translation: sentences of one language in, of another one out."""

from pskd.workbench.tasks.translation.predictor import TranslatedText, TranslationPredictor
from pskd.workbench.tasks.translation.task import Translation

__all__ = ["TranslatedText", "Translation", "TranslationPredictor"]
