#!/bin/sh
# Known vulnerabilities of the installed packages, by pip-audit. It says so and is content where it cannot ask: a machine
# without the network is no reason for a red build.
tool="$(dirname "$PYTHON")/pip-audit"
[ -x "$tool" ] || tool=$(command -v pip-audit) || { echo "audit skipped: pip-audit is not installed (pip install pip-audit)."; exit 0; }
"$PYTHON" -c 'import urllib.request as web; web.urlopen("https://pypi.org/pypi/pip/json", timeout=10)' 2>/dev/null ||
    { echo "audit skipped: pypi.org cannot be reached."; exit 0; }
# --skip-editable: ricnet itself is installed from here and has no version there.
PIPAPI_PYTHON_LOCATION="$PYTHON" exec "$tool" --progress-spinner off --skip-editable
