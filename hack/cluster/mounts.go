package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// mountsBelow lists the mount points at or below any of the folders, the innermost first, from the text of
// /proc/self/mountinfo.
func mountsBelow(mountinfo string, dirs ...string) []string {
	var points []string
	for line := range strings.SplitSeq(mountinfo, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := unescapeMount(fields[4])
		for _, dir := range dirs {
			if point == dir || strings.HasPrefix(point, dir+"/") {
				// The kernel lists mounts in the order in which they were made.
				points = append([]string{point}, points...)
				break
			}
		}
	}
	return points
}

// unescapeMount undoes the kernel's octal escapes of characters that would break the line into other fields.
func unescapeMount(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}

// removeTrees removes folders with everything in them, once nothing is mounted there any more: what is mounted is not
// ours to remove.
func removeTrees(dirs ...string) error {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("reading mounts: %w", err)
	}
	for _, point := range mountsBelow(string(mountinfo), dirs...) {
		if err := unmount(point); err != nil {
			return fmt.Errorf("unmounting %s: %w", point, err)
		}
	}
	mountinfo, err = os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("reading mounts: %w", err)
	}
	if left := mountsBelow(string(mountinfo), dirs...); len(left) > 0 {
		return fmt.Errorf("removing state: %s is still mounted", left[0])
	}
	var problems []error
	for _, dir := range dirs {
		problems = append(problems, os.RemoveAll(dir))
	}
	return errors.Join(problems...)
}
