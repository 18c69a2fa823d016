// SPDX-License-Identifier: Apache-2.0
//
// What the wheel puts on PATH as `kvonce` and `kvonced`: finds the program of that name in the package and becomes it. It needs
// libc alone. The programs themselves need bundled libraries, which they find beside the package only, where they lie.
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char found[PATH_MAX];
static int found_minor = -1;

/// Remembers prefix + middle + "/kvonce/" + name where that can be run; of several Pythons the newest.
static void look(const char* prefix, const char* middle, int minor) {
  char path[PATH_MAX];
  const int length = snprintf(path, sizeof path, "%s%s/kvonce/%s", prefix, middle, KVONCE_PROGRAM);
  if (length < 0 || (size_t)length >= sizeof path || minor < found_minor || access(path, X_OK) != 0) return;
  memcpy(found, path, (size_t)length + 1);
  found_minor = minor;
}

/// Every PREFIX/<folder>/python3.N/{site,dist}-packages.
static void look_in(const char* prefix, const char* folder) {
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%s/%s", prefix, folder) >= (int)sizeof path) return;
  DIR* const entries = opendir(path);
  if (entries == NULL) return;
  for (const struct dirent* entry; (entry = readdir(entries)) != NULL;) {
    int minor = 0;
    if (sscanf(entry->d_name, "python3.%d", &minor) != 1) continue;
    static const char* const kPackages[] = {"site-packages", "dist-packages"};
    for (size_t i = 0; i < 2; ++i) {
      char middle[PATH_MAX];
      if (snprintf(middle, sizeof middle, "/%s/%s/%s", folder, entry->d_name, kPackages[i]) < (int)sizeof middle)
        look(prefix, middle, minor);
    }
  }
  closedir(entries);
}

int main(int argc, char** argv) {
  (void)argc;
  char prefix[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", prefix, sizeof prefix - 1);
  if (length <= 0) {
    perror(KVONCE_PROGRAM ": /proc/self/exe");
    return 126;
  }
  prefix[length] = '\0';
  // PREFIX/bin/NAME
  for (int i = 0; i < 2; ++i) {
    char* const slash = strrchr(prefix, '/');
    if (slash == NULL) break;
    *slash = '\0';
  }
  look_in(prefix, "lib");
  look_in(prefix, "lib64");
  // pip install --target
  if (found_minor < 0) look(prefix, "", 0);
  if (found_minor < 0) {
    fprintf(stderr,
            "%s: the Python package kvonce is in no lib/python3.*/site-packages below %s: install it again, or run python -m "
            "kvonce.selftest\n",
            KVONCE_PROGRAM, prefix);
    return 127;
  }
  argv[0] = found;
  execv(found, argv);
  fprintf(stderr, "%s: %s cannot be run: %s\n", KVONCE_PROGRAM, found, strerror(errno));
  return 126;
}
