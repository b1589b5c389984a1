"""Reports to other libraries, echoed to the session: their metrics, media and configuration become its own.

Each library has a module here, with a function `install(module)` that is called once the library has been imported
(nsml/_sitecustomize.py has the table), and perhaps `before_import(module)`. It adds hooks with `_hooks.follow`, which
fences them: the first exception of a hook removes it, and the program goes on. `_sink.sink()` records.

Rules: never raise into the program, block it, or keep it from exiting; never send anything to the user's account there,
nor keep anything from it.
"""
