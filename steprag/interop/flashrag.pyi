from apps.library.flashrag import StepRAGPipeline as StepRAGPipeline
from apps.library.flashrag import StepRAGRetriever as StepRAGRetriever
