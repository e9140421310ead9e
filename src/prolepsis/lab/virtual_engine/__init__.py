"""The engine on a virtual clock: real scheduler, paging and decisions; passes and drafts are replayed."""
