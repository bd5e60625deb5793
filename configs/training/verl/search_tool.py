"""The tool that verl's agent loop calls: a search at our service. Loaded by verl, from this path; nothing imports it.

$STEPRAG_RETRIEVER names the service (`steprag index serve`), $STEPRAG_RETRIEVER_TOKEN its token, where it has one.
"""

import json
import os
import urllib.request

from verl.tools.function_tool import function_tool  # pyright: ignore[reportMissingImports]

PASSAGES = 3


@function_tool("search")
def search(query: str) -> str:
    """Searches the corpus for passages.

    Args:
        query: What to look for, in a few words or a question.
    """
    body = json.dumps({"queries": [query], "topk": PASSAGES, "return_scores": True}).encode()
    token = os.environ.get("STEPRAG_RETRIEVER_TOKEN")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    url = f"{os.environ['STEPRAG_RETRIEVER'].rstrip('/')}/retrieve"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as reply:
        (found,) = json.load(reply)["result"]
    documents = [item["document"] for item in found]
    return "\n\n".join(f"{each.get('title', '')}\n{each.get('text', '')}".strip() for each in documents) or "Nothing."
