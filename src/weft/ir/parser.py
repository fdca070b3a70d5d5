"""xDSL's parser of MLIR text as Weft uses it: linear in the text, and whatever is wrong with that is one error."""

# xDSL's parser has no other way to give it a lexer.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import ParseError as XdslParseError
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer

from weft.errors import ParseError, WeftError

_HINT = "programs are in MLIR's generic form, as `weft opt` prints it"


class _LinearLexer(MLIRLexer):
    # xDSL's own tries every division of an unterminated string into parts; here what has matched stays matched.
    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')


class TextParser(Parser):
    """Reads a program from text; `what` it should be is said where it is not."""

    def __init__(self, context: Context, text: str, name: str, what: str) -> None:
        super().__init__(context, "", name)
        self._name, self._what = name, what
        try:
            self._parser_state = ParserState(_LinearLexer(Input(text, name)))
        except XdslParseError as error:
            raise self._refused(error) from error

    def program(self) -> ModuleOp:
        """The module that the text is."""
        try:
            return self.parse_module()
        except Exception as error:  # attributes and ops make what they like of a text that they did not expect
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ParseError:
        if isinstance(error, WeftError):
            return ParseError(f"not {self._what}: {error.message}", location=self._name, hint=error.hint)
        span = error.span if isinstance(error, XdslParseError) else self._current_token.span
        said = error.msg if isinstance(error, XdslParseError) else str(error) or type(error).__name__
        place = span.get_location()
        return ParseError(f"not {self._what}: {said}", location=f"{self._name}:{place.line}:{place.col}", hint=_HINT)
