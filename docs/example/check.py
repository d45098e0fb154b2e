"""Counts the links of an index and fails when one leads nowhere."""

import os
import re
import sys
from pathlib import Path

index = Path(sys.argv[1])
links = re.findall(r'href="([^"]+)"', index.read_text())
missing = [link for link in links if not (index.parent / link).exists()]
if missing:
    sys.exit(f"{index}: leads nowhere: {', '.join(missing)}")
Path(os.environ["ASSAY_RESULT"]).write_text(str(len(links)))
