"""`transformers serve` with what its own API leaves out: log-probabilities of a given text, and a key.

    python -m steprag.engines.transformers_serve serve FOLDER …

`POST /score` takes {"model": …, "messages": […], "text": …} and gives the log-probability of every token of the text
behind the prompt, and how many tokens both have: {"logprobs": […], "prompt_tokens": …, "completion_tokens": …}. The
text is encoded by itself, as `steprag.policy.scoring` says. Scores and completions take turns on the model's thread.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from steprag.engines.launch import ENGINE_KEY
from steprag.engines.pretrained import check_complete
from steprag.engines.templates import SYSTEM_ROLE, Takes, as_parts, trial
from steprag.engines.tokens import frame_of, prompt_tokens
from steprag.errors import ConfigError
from steprag.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GivenText(BaseModel):
    """What `/score` is asked."""

    model: str
    messages: list[Message]
    text: str
    chat_template_kwargs: dict[str, Any] = {}


def logprobs_of(model: PreTrainedModel, prompt: list[int], text: list[int]) -> list[float]:
    """Of every token of `text` behind `prompt`, in natural logarithms."""
    import torch

    with torch.inference_mode():
        ids = torch.tensor([prompt + text], device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        told = torch.log_softmax(logits.float(), dim=-1)
        return told[torch.arange(len(text)), torch.tensor(text, device=told.device)].tolist()


def with_scores(build: Callable[..., FastAPI]) -> Callable[..., FastAPI]:
    """transformers' function that builds its app; the app it builds here has the route for scores, too."""

    def built(model_manager: Any, *handlers: Any, generation_state: Any, **more: Any) -> FastAPI:
        app = build(model_manager, *handlers, generation_state=generation_state, **more)

        @app.post("/score")
        async def score(asked: GivenText) -> dict[str, Any]:
            if asked.model != model_manager.force_model:
                raise HTTPException(404, f"this server has {model_manager.force_model} alone")
            name = model_manager.process_model_name(asked.model)
            model, processor = model_manager.load_model_and_processor(name)
            tokenizer = getattr(processor, "tokenizer", processor)
            try:
                prompt = prompt_tokens(asked.messages, tokenizer, **asked.chat_template_kwargs)
            except ConfigError as error:
                raise HTTPException(422, str(error)) from None
            text = tokenizer.encode(asked.text, add_special_tokens=False)
            told = await generation_state.get_manager(name).async_submit(logprobs_of, model, prompt, text)
            return {"logprobs": told, "prompt_tokens": len(prompt), "completion_tokens": len(text)}

        if key := os.environ.get(ENGINE_KEY):
            app.add_middleware(KeyedApp, key=key)
        return app

    return built


def ending_turns(load: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """transformers' function that loads a model; the model it loads stops where training ends a turn, too, and its
    chats are rendered as in training.
    """

    def loaded(*given: Any, **options: Any) -> tuple[Any, Any]:
        model, processor = load(*given, **options)
        tokenizer = getattr(processor, "tokenizer", processor)
        if not getattr(model, "_hf_peft_config_loaded", False):  # `steprag.engines.weights` has checked an adapter
            check_complete(model, model.name_or_path, tokenizer)
        stop_at_turns(model, tokenizer)
        if not hasattr(processor, "tokenizer"):  # a processor is given parts already
            render_as_trained(processor)
        return model, processor

    return loaded


def render_as_trained(tokenizer: Any) -> None:
    """Has a tokenizer's chats rendered as parts where its template wants them so, and refuses with 400 a system message
    that it would leave out.
    """
    takes, render = trial(tokenizer), tokenizer.apply_chat_template
    if takes == Takes():
        return

    def rendered(chat: Any, *given: Any, **options: Any) -> Any:
        if not takes.fits(chat):
            raise HTTPException(400, f"the chat template leaves out system messages; {SYSTEM_ROLE}")
        return render(as_parts(chat) if takes.parts else chat, *given, **options)

    tokenizer.apply_chat_template = rendered


def stop_at_turns(model: Any, tokenizer: Any) -> None:
    """Adds the token that ends a turn by the chat template to those at which the model stops, if there is one."""
    told = model.generation_config.eos_token_id
    told = tuple(told) if isinstance(told, list) else () if told is None else (told,)
    asked = (Message(role="user", content=""),)
    try:
        end = frame_of(asked, tokenizer, told).closing[-1]
    except ConfigError:
        return
    if end not in told:
        model.generation_config.eos_token_id = [end, *told]


class KeyedApp:
    """An app that requires the key for every path but `/health`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._wanted = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "lifespan" or scope["path"] == "/health" or hmac.compare_digest(sent, self._wanted):
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"error": {"message": "the key is missing or wrong"}}, 401)(scope, receive, send)


def main() -> None:
    """The command line of transformers, its server with our route."""
    from transformers.cli import transformers
    from transformers.cli.serving import server
    from transformers.cli.serving.model_manager import ModelManager

    server.build_server = with_scores(server.build_server)
    ModelManager.load_model_and_processor = ending_turns(ModelManager.load_model_and_processor)
    transformers.main()


if __name__ == "__main__":
    main()
