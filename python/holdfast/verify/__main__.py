"""`python -m holdfast.verify`: the same as `holdfast verify`."""

from holdfast.verify._course import main

raise SystemExit(main())
