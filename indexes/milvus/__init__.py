"""A Milvus collection in the place of an index folder, for corpora that outgrow one (extra `milvus`).

Used by `open_retriever` (`milvus://HOST:PORT/COLLECTION`) and by `steprag index upload`, which fills a collection from
an index folder.
"""
