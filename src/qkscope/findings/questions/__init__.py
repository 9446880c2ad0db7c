"""The questions, a module a subject. A new one is a function under `@question` in any module here."""
