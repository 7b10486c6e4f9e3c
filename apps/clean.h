// `holdfast clean`: removes what dead jobs of this user have left on this host.
#pragma once

namespace holdfast::apps {

// Says what it removes, or would remove (`dry_run`), and what it leaves alone. Returns the exit
// code: 0, or 1 where something could not be removed.
int clean(bool dry_run);

}  // namespace holdfast::apps
