/* base/file_write: the old file or the new one, nothing between; what it keeps of the old one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>

#include "base/file_write.h"

static char folder[64], path[80];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/calla-test-XXXXXX");
    umask(022);
    if (!mkdtemp(folder))
        return -1;
    strcat(strcpy(path, folder), "/file");
    return 0;
}

static int count_files(void)
{
    int n = 0;
    DIR *open = opendir(folder);
    assert_non_null(open);
    for (struct dirent *entry; (entry = readdir(open));)
        n += entry->d_name[0] != '.';
    closedir(open);
    return n;
}

static int remove_folder(void **state)
{
    (void)state;
    DIR *open = opendir(folder);
    chmod(folder, 0700);
    for (struct dirent *entry; (entry = readdir(open));)
        unlinkat(dirfd(open), entry->d_name, 0);
    closedir(open);
    return rmdir(folder);
}

static void write_text(const char *to, mode_t mode, const char *text)
{
    struct error error;
    if (file_write(to, mode, text, strlen(text), &error) != STATUS_OK)
        fail_msg("%s", error.message);
}

static void assert_text(const char *of, const char *wanted)
{
    char text[64];
    int file = open(of, O_RDONLY);
    ssize_t n = read(file, text, sizeof text);
    close(file);
    assert_int_equal(n, (ssize_t)strlen(wanted));
    assert_memory_equal(text, wanted, (size_t)n);
}

static mode_t mode_of(const char *of)
{
    struct stat info;
    assert_int_equal(stat(of, &info), 0);
    return info.st_mode & 07777;
}

static void new_and_replaced(void **state)
{
    (void)state;
    char old[8] = "";
    write_text(path, 0, "first");
    assert_int_equal(mode_of(path), 0644);
    int reader = open(path, O_RDONLY);
    chmod(path, 0640);
    write_text(path, 0, "2nd");
    assert_text(path, "2nd");
    assert_int_equal(mode_of(path), 0640); /* its own */
    /* whoever has it open still reads the old one, so it was never cut */
    assert_int_equal(read(reader, old, sizeof old), 5);
    assert_string_equal(old, "first");
    close(reader);
    write_text(path, 0600, "");
    assert_text(path, "");
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(count_files(), 1);
}

static void dropped_and_failed(void **state)
{
    (void)state;
    struct file_writer writer;
    struct error error;
    write_text(path, 0, "old");
    assert_int_equal(file_writer_open(&writer, path, 0, &error), STATUS_OK);
    fputs("new", writer.stream);
    fflush(writer.stream);
    assert_text(path, "old");
    assert_int_equal(count_files(), 2);
    assert_int_equal(file_writer_close(&writer, false, &error), STATUS_OK);
    assert_text(path, "old");
    assert_int_equal(count_files(), 1);
    /* what cannot be written whole changes nothing: here the stream is no longer open */
    assert_int_equal(file_writer_open(&writer, path, 0, &error), STATUS_OK);
    fputs("new", writer.stream);
    close(fileno(writer.stream));
    assert_int_equal(file_writer_close(&writer, true, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "/file: Bad file descriptor"));
    assert_text(path, "old");
    assert_int_equal(count_files(), 1);
    assert_int_equal(file_write("/dev/full", 0, "x", 1, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "/dev/full: No space left"));
    assert_int_equal(file_write("", 0, "x", 1, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "'': No such file"));
    assert_int_equal(file_write(folder, 0, "x", 1, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "Is a directory"));
}

static void links(void **state)
{
    (void)state;
    char link_path[96], other[96];
    strcat(strcpy(link_path, folder), "/link");
    strcat(strcpy(other, folder), "/other");
    assert_int_equal(symlink("file", link_path), 0);
    write_text(link_path, 0, "made"); /* it led nowhere */
    assert_text(path, "made");
    write_text(link_path, 0, "again");
    struct stat info;
    assert_int_equal(lstat(link_path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_text(path, "again");
    assert_int_equal(link(path, other), 0); /* two names stay those of one file */
    write_text(path, 0, "both");
    assert_text(other, "both");
    assert_int_equal(count_files(), 3);
}

/* A part that another process left behind is no obstacle, and stays. */
static void parts_of_others(void **state)
{
    (void)state;
    char part[128];
    snprintf(part, sizeof part, "%s.%ld.0.part", path, (long)getpid());
    close(open(part, O_WRONLY | O_CREAT, 0600));
    write_text(path, 0, "whole");
    assert_text(path, "whole");
    assert_int_equal(count_files(), 2);
}

/* In a process of its own, for nothing is protected from root. Gives what went wrong; 0: nothing.
 */
static int protected_as_user(void)
{
    if (geteuid() == 0 && (chown(folder, 65534, 65534) != 0 || setuid(65534) != 0))
        return 1;
    if (file_write(path, 0, "old", 3, NULL) != STATUS_OK || chmod(path, 0444) != 0)
        return 2;
    if (file_write(path, 0, "x", 1, NULL) != STATUS_IO)
        return 3;
    /* no other file can be made: the file itself is written */
    if (chmod(path, 0644) != 0 || chmod(folder, 0500) != 0)
        return 4;
    return file_write(path, 0, "new", 3, NULL) == STATUS_OK ? 0 : 5;
}

static void protected(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(protected_as_user());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_text(path, "new");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(new_and_replaced, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(dropped_and_failed, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(links, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(parts_of_others, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(protected, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
