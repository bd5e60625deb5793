"""What stands on a PDF's page beside its text: values of forms, and notes that people put on it.

Part of the process that reads documents (`document_worker`), and like it imports nothing of this package.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

MOST = 10_000
"""Annotations of a page, and bookmarks of a file, that are looked at."""
Placed = tuple[float, float, float, float, str, str]
"""Left, right, top, bottom and text of what was filled in or noted; the field's name, of a note none."""


def beside(document: Any, page: Any) -> Iterator[Placed]:
    """Fields with their values and ticks with their names; then what notes say."""
    from pypdfium2 import raw

    form = document.formenv.raw if document.formenv else None
    for index in range(min(raw.FPDFPage_GetAnnotCount(page.raw), MOST)):
        annotation, rect = raw.FPDFPage_GetAnnot(page.raw, index), raw.FS_RECTF()
        kind = raw.FPDFAnnot_GetSubtype(annotation)
        raw.FPDFAnnot_GetRect(annotation, rect)
        name, text = "", ""
        if kind == raw.FPDF_ANNOT_WIDGET and form:
            name, text = _field(form, annotation)
        elif kind not in (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP):
            text = _said(lambda *into, one=annotation: raw.FPDFAnnot_GetStringValue(one, b"Contents", *into))
        raw.FPDFPage_CloseAnnot(annotation)
        if text:
            yield rect.left, rect.right, rect.top, rect.bottom, text, name


def _field(form: Any, annotation: Any) -> tuple[str, str]:
    """A field's name and value; "[x] NAME" or "[ ] NAME" of a tick box. No value where it is empty, or a button."""
    from pypdfium2 import raw

    def asked(function: Callable[..., int]) -> str:
        return _said(lambda *into: function(form, annotation, *into))

    kind, text = raw.FPDFAnnot_GetFormFieldType(form, annotation), ""
    name = asked(raw.FPDFAnnot_GetFormFieldAlternateName) or asked(raw.FPDFAnnot_GetFormFieldName) or "field"
    if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
        choice = asked(raw.FPDFAnnot_GetFormFieldExportValue) if kind == raw.FPDF_FORMFIELD_RADIOBUTTON else ""
        ticked = raw.FPDFAnnot_IsChecked(form, annotation)
        text = f"[{'x' if ticked else ' '}] {name}{': ' * bool(choice)}{choice}"
    elif kind in (raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX):
        text = asked(raw.FPDFAnnot_GetFormFieldValue)
    return name, text


def _said(function: Callable[..., int]) -> str:
    """A text that PDFium writes as UTF-16 into a buffer whose bytes it says first."""
    size = function(None, 0)
    if size <= 2:
        return ""
    buffer = (ctypes.c_ushort * (size // 2 + 1))()
    function(buffer, size)
    return " ".join(bytes(buffer)[:size].decode("utf-16-le", "replace").replace("\0", " ").split())


def leave_others(document: Any, words: set[str], out: Any) -> None:
    """Names what a file holds beside its pages: files in it, forms in XFA, bookmarks that say more."""
    from pypdfium2 import raw

    for index in range(min(document.count_attachments(), MOST)):
        out.leave("embedded files", 0, document.get_attachment(index).get_name() or "without a name", seen=False)
    if document.get_formtype() in (raw.FORMTYPE_XFA_FULL, raw.FORMTYPE_XFA_FOREGROUND):
        out.leave("forms in XFA", 0, "fields that only Adobe's programs show", seen=False)
    for bookmark in islice(document.get_toc(), MOST):
        title = bookmark.get_title()
        if any(word.casefold() not in words for word in title.split()):
            out.leave("bookmarks", 0, title, seen=False)
