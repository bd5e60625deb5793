# The demo with its chat, for a CPU:
#   docker build -t steprag .
#   docker run -p 127.0.0.1:8100:8100 -e STEPRAG_TOKEN=SECRET steprag      then open http://127.0.0.1:8100/#token=SECRET
FROM python:3.11-slim
RUN useradd --create-home steprag
USER steprag
WORKDIR /home/steprag/app
COPY --chown=steprag . .
RUN TORCH_INDEX=https://download.pytorch.org/whl/cpu bash scripts/setup.sh && .venv/bin/steprag demo
EXPOSE 8100
CMD [".venv/bin/steprag", "serve", "--index", "runs/demo/index", "--serve.host", "0.0.0.0"]
