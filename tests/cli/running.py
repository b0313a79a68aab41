"""Runs the tests of a Python program that is called as PROGRAM VERBATIM [TEST...]."""
import sys
import traceback


def run_tests(tests):
    """Runs them, or those that the command line names; returns the exit code."""
    names = sys.argv[2:]
    failed = passed = 0
    for test in tests:
        if names and test.__name__ not in names:
            continue
        try:
            test()
            passed += 1
            print(f"[       OK ] {test.__name__}", flush=True)
        except Exception:  # of any kind: the other tests still run
            failed += 1
            traceback.print_exc()
            print(f"[  FAILED  ] {test.__name__}", flush=True)
    print(f"[  PASSED  ] {passed} test(s).")
    return failed != 0 or not passed  # an unknown name is a failure
