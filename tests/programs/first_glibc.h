/* first_glibc.h: the oldest version that symbols of glibc have on this processor.
 *
 * A program that was linked with an old glibc asks for this version. */
#ifndef FIRST_GLIBC_H
#define FIRST_GLIBC_H

#ifdef __x86_64__
#define FIRST_GLIBC "GLIBC_2.2.5"
#else
#define FIRST_GLIBC "GLIBC_2.17"
#endif

#endif
