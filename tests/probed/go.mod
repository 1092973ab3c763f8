module pintle.invalid/tests/probed

go 1.26.0
