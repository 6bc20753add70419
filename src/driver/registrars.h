/*
 * Libraries that register memory with network cards and disks.
 *
 * That goes through the kernel and passes by the driver's entries: nobody tells us which memory is registered, nor
 * when it no longer is. Memory in pages is refused there, or registered page by page as it lies. So where one of them is
 * loaded memory comes in segments, unless pages are asked for; and once one is loaded and this process has opened the
 * device through which such memory is registered, no page that is mapped is moved. What is linked into the program itself
 * is not found. Two with which PyTorch is linked, whether it uses them or not, are no reason for segments.
 */
#ifndef GPUCACHE_DRIVER_REGISTRARS_H
#define GPUCACHE_DRIVER_REGISTRARS_H

/** Which one is loaded, as a reason for segments; or NULL. Looks through the loaded libraries, if any came since. */
const char *registrars_loaded(void);

/** Why pages have to stay where they are; or NULL. From now on where a device is open; this time only where the open
 * files, which are looked through where one is loaded, cannot be. */
const char *registrars_freeze(void);

#endif
